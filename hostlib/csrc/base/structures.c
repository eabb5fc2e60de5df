// SPDX-License-Identifier: Apache-2.0
#include "base/structures.h"

#include "base/min.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool understood(void *ours, size_t size, const void *theirs) {
    uint32_t their_size = 0;
    if (theirs != NULL)
        memcpy(&their_size, theirs, sizeof their_size);
    if (their_size < sizeof their_size)
        return false;
    memset(ours, 0, size);
    memcpy(ours, theirs, min_of(their_size, size));
    for (size_t i = size; i < their_size; i++)
        if (((const uint8_t *)theirs)[i] != 0)
            return false;
    return true;
}

bool structure_in(void *ours, size_t size, const void *theirs, const char *name, p4reduce_error *error) {
    if (understood(ours, size, theirs))
        return true;
    error_tell(error, P4REDUCE_INVALID, "%s: this version of the library does not understand this structure", name);
    return false;
}

void structure_out(void *theirs, const void *ours, size_t size) {
    uint32_t their_size = 0;
    if (theirs != NULL)
        memcpy(&their_size, theirs, sizeof their_size);
    if (their_size > sizeof their_size)
        memcpy((uint8_t *)theirs + sizeof their_size, (const uint8_t *)ours + sizeof their_size,
               min_of(their_size, size) - sizeof their_size);
}

static void fill(p4reduce_error *ours, p4reduce_status status, const char *format, va_list arguments) {
    *ours = (p4reduce_error){.size = sizeof *ours, .status = (int32_t)status, .rank = -1};
    vsnprintf(ours->message, sizeof ours->message, format, arguments);
}

p4reduce_status error_fill(p4reduce_error *ours, p4reduce_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fill(ours, status, format, arguments);
    va_end(arguments);
    return status;
}

p4reduce_status error_tell(p4reduce_error *theirs, p4reduce_status status, const char *format, ...) {
    p4reduce_error ours;
    va_list arguments;
    va_start(arguments, format);
    fill(&ours, status, format, arguments);
    va_end(arguments);
    return error_out(theirs, &ours);
}

p4reduce_status error_out(p4reduce_error *theirs, const p4reduce_error *ours) {
    structure_out(theirs, ours, sizeof *ours);
    // The message in a shorter form of the structure must end with a zero, too.
    if (theirs != NULL && theirs->size > offsetof(p4reduce_error, message) && theirs->size < sizeof *ours)
        ((char *)theirs)[theirs->size - 1] = '\0';
    return (p4reduce_status)ours->status;
}
