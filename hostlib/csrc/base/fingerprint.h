// SPDX-License-Identifier: Apache-2.0
// Fingerprints of 32 bits. The upper 24 identify a rank's operation, and the lower 8 are the active lanes of its round.
#ifndef P4REDUCE_FINGERPRINT_H
#define P4REDUCE_FINGERPRINT_H

#include <stdbool.h>
#include <stdint.h>

enum {
    NAME_BYTES = 32,               // name of a dtype or a reduction, with the zero at its end
    NUMBERS_BYTES = NAME_BYTES + 6 // name of a dtype, with ":" and the wire if it is not int32: "bfloat16:int16"
};

// Returns the fingerprint of the operation that is number `counter` in its job. The fingerprint's lower 8 bits are 0.
// The switch compares fingerprints, and so finds ranks that call different operations.
uint32_t fingerprint(uint32_t counter, const char *dtype, const char *reduce_op, uint64_t count);

// Returns the fingerprint of a round: its operation's, with the bitmap of its active lanes.
static inline uint32_t fingerprint_of_round(uint32_t operation, uint8_t active) {
    return operation | active;
}

// Returns whether two rounds are of the same operation, according to their fingerprints.
static inline bool same_operation(uint32_t one, uint32_t other) {
    return one >> 8 == other >> 8;
}

#endif
