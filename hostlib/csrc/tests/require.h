// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_TESTS_REQUIRE_H
#define P4REDUCE_TESTS_REQUIRE_H

#include <stdio.h>
#include <stdlib.h>

static inline void require(int condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "failed: %s\n", what);
        exit(1);
    }
}

#endif
