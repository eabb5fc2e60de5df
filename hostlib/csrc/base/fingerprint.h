// SPDX-License-Identifier: Apache-2.0
// Fingerprints: 32 bits that identify a rank's operation (the upper 24) and the lanes of its round (the lower 8).
#ifndef P4REDUCE_FINGERPRINT_H
#define P4REDUCE_FINGERPRINT_H

#include <stdbool.h>
#include <stdint.h>

enum {
    NAME_BYTES = 32,               // name of a dtype or a reduction, with the zero at its end
    NUMBERS_BYTES = NAME_BYTES + 6 // name of a dtype, with the wire if it is not int32: "bfloat16:int16"
};

// Returns the fingerprint of the job's operation number `counter`, whose lower 8 bits are 0. By it the switch notices
// that ranks call different operations.
uint32_t fingerprint(uint32_t counter, const char *dtype, const char *reduce_op, uint64_t count);

static inline uint32_t fingerprint_of_round(uint32_t operation, uint8_t active) {
    return operation | active;
}

// Returns whether two rounds' fingerprints differ at most in their lanes.
static inline bool same_operation(uint32_t one, uint32_t other) {
    return one >> 8 == other >> 8;
}

#endif
