// SPDX-License-Identifier: Apache-2.0
// What a rank is at, in 32 bits: the operation in the upper 24, the lanes of the round in the lower 8.
#ifndef P4REDUCE_FINGERPRINT_H
#define P4REDUCE_FINGERPRINT_H

#include <stdbool.h>
#include <stdint.h>

enum {
    NAME_BYTES = 32,                  // of a dtype or a reduction, with the zero at its end
    NUMBERS_BYTES = NAME_BYTES + 6 // of a dtype, and the wire where it is not int32: "bfloat16:int16"
};

// 32 bits, of which the lower 8 are 0, that identify the job's `counter`-th operation, so that the switch notices ranks
// that call different things.
uint32_t fingerprint(uint32_t counter, const char *dtype, const char *reduce_op, uint64_t count);

static inline uint32_t fingerprint_of_round(uint32_t operation, uint8_t active) {
    return operation | active;
}

// Whether two rounds' fingerprints differ at most in their lanes.
static inline bool same_operation(uint32_t one, uint32_t other) {
    return one >> 8 == other >> 8;
}

#endif
