// SPDX-License-Identifier: Apache-2.0
// Structures of the public interface, whose size may differ between versions of caller and library.
#ifndef P4REDUCE_STRUCTURES_H
#define P4REDUCE_STRUCTURES_H

#include "p4reduce.h"

#include <stdbool.h>

// Copies a caller's structure into one of ours, of `size` bytes. Returns false if it is NULL, or has fields that we do
// not know and that are not zero. Then `error`, which may be NULL, says so with the structure's `name`.
bool structure_in(void *ours, size_t size, const void *theirs, const char *name, p4reduce_error *error);

// Copies a structure of ours to a caller's, which has set its size. NULL is accepted.
void structure_out(void *theirs, const void *ours, size_t size);

// Fills an error, whose fields other than status and message become neutral. Returns the status.
p4reduce_status error_fill(p4reduce_error *ours, p4reduce_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// The same for a caller's error, which may be NULL.
p4reduce_status error_tell(p4reduce_error *theirs, p4reduce_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Copies an error of ours to a caller's, which may be NULL. Returns its status.
p4reduce_status error_out(p4reduce_error *theirs, const p4reduce_error *ours);

#endif
