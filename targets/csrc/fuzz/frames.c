// SPDX-License-Identifier: Apache-2.0
// Fuzzes the general path. The input is a sequence of frames, each after its port (one byte; 0: the CPU port) and its
// length (two bytes).
#include "pipeline.h"
#include "setup.h"
#include "wire/bytes.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

static void emit(struct context *context, unsigned port, const uint8_t *frame, size_t length) {
    (void)context;
    (void)port;
    for (size_t at = 0; at < length; at++) // the sanitizer finds reads beyond the frame
        sink ^= frame[at];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct context context;
    if (context.plane == NULL) {
        if (!context_create(&context, 0))
            abort();
        context.plane = fuzz_plane();
        context.counters = context.plane->counters;
        context.emit = emit;
    }
    context.random = 1;
    fuzz_reset(context.plane);
    while (size >= 3) {
        unsigned port = data[0] == 0 ? FUZZ_CPU_PORT : data[0];
        size_t length = load_16(data + 1);
        data += 3;
        size -= 3;
        if (length > size)
            length = size;
        memcpy(context_frame(&context), data, length);
        pipeline_process(&context, port, length);
        data += length;
        size -= length;
    }
    return 0;
}
