// SPDX-License-Identifier: Apache-2.0
// What an operation is, in short.
#ifndef P4REDUCE_FINGERPRINT_H
#define P4REDUCE_FINGERPRINT_H

#include <stdint.h>

enum { NAME_BYTES = 32 }; // of a dtype or a reduction, with the zero at its end

// 32 bits that identify the job's `counter`-th operation, so that the switch notices ranks that call different things.
uint32_t fingerprint(uint32_t counter, const char *dtype, const char *reduce_op, uint64_t count);

#endif
