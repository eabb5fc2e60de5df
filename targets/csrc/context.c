// SPDX-License-Identifier: Apache-2.0
#include "context.h"

#include <stdlib.h>
#include <sys/random.h>

bool context_create(struct context *context, unsigned number) {
    *context = (struct context){.number = number, .buffer = malloc(CONTEXT_BUFFER_SIZE)};
    if (getrandom(&context->random, sizeof context->random, 0) != sizeof context->random)
        context->random = (uintptr_t)context;
    return context->buffer != NULL;
}

void context_destroy(struct context *context) {
    free(context->buffer);
    context->buffer = NULL;
}
