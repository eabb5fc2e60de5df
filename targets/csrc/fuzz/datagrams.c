// SPDX-License-Identifier: Apache-2.0
// Fuzzes the fast path of a UDP port, and compares it with the general path. The same datagrams go to two planes, to
// one of them as frames, and slots and counters must then be the same. The input is a sequence of messages, each after
// its sender (one byte), its length and the length of a datagram (two bytes each).
#include <sys/socket.h>

#define sendmsg do_not_send
static ssize_t do_not_send(int descriptor, const struct msghdr *message, int flags);
#include "../udp.c"
#undef sendmsg

#include "datagrams.h"
#include "native.h"
#include "pipeline.h"
#include "ports_udp.h"
#include "setup.h"
#include "wire/bytes.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

static ssize_t do_not_send(int descriptor, const struct msghdr *message, int flags) {
    (void)descriptor;
    (void)flags;
    for (size_t at = 0; at < message->msg_iovlen; at++)
        for (size_t place = 0; place < message->msg_iov[at].iov_len; place++)
            sink ^= ((const uint8_t *)message->msg_iov[at].iov_base)[place];
    return 0;
}

static void emit_nothing(struct context *context, unsigned port, const uint8_t *frame, size_t length) {
    (void)context;
    (void)port;
    (void)frame;
    (void)length;
}

static void emit_of_thread(struct context *context, unsigned port, const uint8_t *frame, size_t length) {
    struct thread *thread = (struct thread *)(void *)context;
    switch_emit(thread->native, context->plane, thread, port, frame, length);
}

static bool same_half(const struct slots *slots, const struct half *one, const struct half *other) {
    size_t size = slots->layout.lanes * lane_length(&slots->layout);
    return memcmp(one, other, sizeof *one) == 0 && one->locked == 0 &&
           memcmp(half_lane(slots, one, 0), half_lane(slots, other, 0), size) == 0;
}

static void compare(struct plane *fast, struct plane *slow) {
    for (unsigned half = 0; half < FUZZ_HALVES; half++)
        if (!same_half(&fast->slots, slots_half(&fast->slots, half), slots_half(&slow->slots, half)))
            abort();
    if (memcmp(&fast->counters[1], &slow->counters[1], sizeof fast->counters[1]) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct plane *fast, *slow;
    static struct native_switch *native;
    static struct context reference;
    static struct udp_port ports[FUZZ_FAMILIES];
    if (native == NULL) {
        native = native_open(1);
        if (native == NULL || !context_create(&reference, 0))
            abort();
        fast = fuzz_plane();
        slow = fuzz_plane();
        native->plane = native->threads[0]->context.plane = fast;
        for (unsigned family = 0; family < FUZZ_FAMILIES; family++) {
            ports[family] = (struct udp_port){
                .port = {.kind = &udp_port_kind, .number = 1 + family}, .ip = fuzz_ip(family), .threads = 1};
            native->ports[1 + family] = &ports[family].port;
        }
        native->threads[0]->context.emit = emit_of_thread;
        reference.plane = slow;
        reference.emit = emit_nothing;
    }
    fuzz_reset(fast);
    fuzz_reset(slow);
    struct thread *thread = native->threads[0];
    thread->context.counters = &fast->counters[1];
    reference.counters = &slow->counters[1];
    thread->context.random = reference.random = 1;
    while (size >= 5) {
        const struct udp_port *port = &ports[data[0] >> 2 & 1];
        const uint16_t udp_port = (uint16_t)(FUZZ_UDP_PORT + data[0] % 4);
        size_t length = load_16(data + 1), step = load_16(data + 3);
        const unsigned ecn = data[0] >> 6;
        data += 5;
        size -= 5;
        if (length > size)
            length = size;
        uint8_t *copy = malloc(length + 1); // of exactly its size, so that the sanitizer finds reads beyond it
        memcpy(copy, data, length);
        const struct message message = {.ip = port->ip,
                                        .udp_port = udp_port,
                                        .data = copy,
                                        .length = length,
                                        .segment_size = step != 0 ? step : length,
                                        .ecn = ecn};
        process_datagrams(thread, port, &message, fast_path_allowed(fast, port));
        results_flush(&thread->results);
        batches_flush(&thread->batches);
        size_t at = 0;
        do {
            size_t one = step != 0 && length - at > step ? step : length - at;
            uint8_t *frame = context_frame(&reference);
            const size_t headers = udp_headers_size(port);
            udp_write_headers(port, frame, port->ip, udp_port, ecn, one);
            memcpy(frame + headers, copy + at, one);
            pipeline_process(&reference, port->port.number, headers + one);
            at += one;
        } while (at < length);
        compare(fast, slow);
        free(copy);
        data += length;
        size -= length;
    }
    return 0;
}
