// SPDX-License-Identifier: Apache-2.0
// Structures that cross the library's border, where caller and library may be of different versions.
#ifndef P4REDUCE_STRUCTURES_H
#define P4REDUCE_STRUCTURES_H

#include "p4reduce.h"

#include <stdbool.h>

// Copies a caller's structure into one of ours, of `size` bytes. False if it is NULL, or says what we do not
// understand; then `error`, which may be NULL, says so of its `name`.
bool structure_in(void *ours, size_t size, const void *theirs, const char *name, p4reduce_error *error);

// Copies one of ours to a caller's, which has set its size; NULL is accepted.
void structure_out(void *theirs, const void *ours, size_t size);

// Fills an error, of which all but the status and message are neutral. Returns the status.
p4reduce_status error_fill(p4reduce_error *ours, p4reduce_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// The same for a caller's error, which may be NULL.
p4reduce_status error_tell(p4reduce_error *theirs, p4reduce_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Copies an error of ours to a caller's, which may be NULL. Returns its status.
p4reduce_status error_out(p4reduce_error *theirs, const p4reduce_error *ours);

#endif
