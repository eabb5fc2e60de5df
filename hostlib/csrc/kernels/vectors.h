// SPDX-License-Identifier: Apache-2.0
// Types for loops over vectors of LANES words, in the vector extension that gcc and clang share. Each file that
// compiles the loops for an instruction set goes in this order:
//   1. defines LANES, and SIMD as the attributes of its functions;
//   2. includes this file, and defines the operations for which the extension has no syntax;
//   3. defines KERNELS, NAME and REST, and includes vector_loops.h.
#ifndef P4REDUCE_VECTORS_H
#define P4REDUCE_VECTORS_H

#include "kernels/kernels.h"

#include <string.h>

#define VECTOR(bytes) __attribute__((vector_size(bytes)))

typedef uint32_t words VECTOR(4 * LANES);
typedef int32_t integers VECTOR(4 * LANES);
typedef float floats VECTOR(4 * LANES);
typedef int16_t shorts VECTOR(4 * LANES);  // 2 * LANES integers
typedef int8_t bytes VECTOR(4 * LANES);    // 4 * LANES integers
typedef uint16_t halves VECTOR(4 * LANES); // 2 * LANES 16-bit floats

SIMD static inline words load_words(const void *from) {
    words vector;
    memcpy(&vector, from, sizeof vector);
    return vector;
}

SIMD static inline floats load_floats(const float *from) {
    floats vector;
    memcpy(&vector, from, sizeof vector);
    return vector;
}

SIMD static inline void store_words(void *to, words vector) {
    memcpy(to, &vector, sizeof vector);
}

SIMD static inline void store_floats(float *to, floats vector) {
    memcpy(to, &vector, sizeof vector);
}

#endif
