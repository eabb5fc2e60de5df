// SPDX-License-Identifier: Apache-2.0
// A fuzzing target for libFuzzer and AFL: a worker with operations under way, and any datagrams in between.
//
// The input describes the job, and then the events: arbitrary datagrams; answers made from the worker's own packets,
// more of which pass the worker's checks than of arbitrary ones; time that passes; and new operations. Each buffer has
// exactly the bytes that it needs, so that sanitizers see any access beyond them.
#include "p4reduce_worker.h"
#include "wire/headers.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_OPERATIONS = 8, LARGEST_PACKET = 4096 }; // LARGEST_PACKET: bytes

struct input {
    const uint8_t *bytes;
    size_t left;
};

// Takes one byte of the input, as a number below `below`. An input that has ended goes on with zeros.
static unsigned take(struct input *input, unsigned below) {
    if (input->left == 0)
        return 0;
    input->left--;
    return *input->bytes++ % below;
}

struct job {
    p4reduce_worker *worker;
    unsigned lanes, block_size;
    void *arrays[MOST_OPERATIONS];
    unsigned operations;
    uint8_t last[LARGEST_PACKET]; // the last packet that the worker has sent
    size_t last_length;
    double now;
};

static void submit(struct job *job, struct input *input) {
    if (job->operations == MOST_OPERATIONS)
        return;
    const size_t count = (size_t)take(input, 256) * take(input, 16);
    const unsigned zero_eighths = take(input, 8), type = P4REDUCE_FLOAT32 + take(input, 4);
    const unsigned zeros = take(input, 3); // p4reduce_zeros: whether zero blocks are sent
    uint32_t *values = malloc(4 * count + (count == 0));
    // The first `zero_eighths` of every 8 blocks are zeros, +0 and -0 in turn. The values of the others are a
    // multiplicative hash of the index.
    for (size_t i = 0; i < count; i++) {
        const bool is_zero = i / job->block_size % 8 < zero_eighths;
        values[i] = is_zero ? (uint32_t)(i & 1) << 31 : (uint32_t)(i * 2654435761u);
    }
    job->arrays[job->operations++] = values;
    const p4reduce_request request = {
        .size = sizeof request,
        .type = type,
        .data = values,
        .count = count,
        .divisor = type != P4REDUCE_INT32 && take(input, 2) ? 3 : 0,
        .wire = type != P4REDUCE_INT32 ? take(input, 3) : P4REDUCE_WIRE_INT32,
        .zeros = zeros,
    };
    p4reduce_worker_submit(job->worker, &request, job->now, NULL);
}

static void receive(struct job *job, const uint8_t *bytes, size_t length) {
    uint8_t *exact = malloc(length + (length == 0));
    memcpy(exact, bytes, length);
    const bool marked = length >= AGGREGATION_SIZE && exact[AGGREGATION_SEQ + 3] & 1; // in odd rounds
    (marked ? p4reduce_worker_receive_marked : p4reduce_worker_receive)(job->worker, exact, length, job->now);
    free(exact);
}

// Makes an answer from the worker's last packet, with one of the ops above DATA and below HELLO: RESULT, STATUS, ERROR,
// RESET, QUERY or ABORT. The input says whether keys and a bit of the header change, and gives the values.
static void answer(struct job *job, struct input *input) {
    if (job->last_length == 0)
        return;
    uint8_t packet[LARGEST_PACKET] = {0};
    memcpy(packet, job->last, job->last_length);
    const unsigned active = packet[AGGREGATION_ACTIVE], op = OP_RESULT + take(input, OP_HELLO - OP_RESULT);
    packet[AGGREGATION_VERSION] = version_and_op(op);
    packet[AGGREGATION_PRESENT] = (uint8_t)(op == OP_RESULT ? active : 0);
    if (op == OP_ABORT && take(input, 2) == 0)
        memset(packet + AGGREGATION_SEQ, 0, 8); // seq and fingerprint give way to the job's abort secret, 0
    for (unsigned change = take(input, 8); change > 0; change--) {
        const unsigned lane = take(input, job->lanes);
        const uint8_t value = (uint8_t)take(input, 256);
        packet[AGGREGATION_SIZE + KEY_SIZE * lane + take(input, 4)] = value;
    }
    if (take(input, 16) == 0)
        packet[take(input, AGGREGATION_SIZE)] ^= (uint8_t)(1u << take(input, 8));
    size_t length = AGGREGATION_SIZE + KEY_SIZE * job->lanes;
    length += (size_t)__builtin_popcount(packet[AGGREGATION_PRESENT]) * job->block_size * VALUE_SIZE;
    for (size_t i = AGGREGATION_SIZE + KEY_SIZE * job->lanes; i < length && i < sizeof packet; i++)
        packet[i] = (uint8_t)take(input, 256);
    receive(job, packet, length < sizeof packet ? length : sizeof packet);
}

// Takes all packets that the worker has to send, and keeps the last one.
static void take_packets(struct job *job) {
    p4reduce_payload payloads[3];
    size_t count;
    while ((count = p4reduce_worker_take(job->worker, payloads, 3)) > 0) {
        job->last_length = payloads[count - 1].length;
        if (job->last_length > sizeof job->last)
            abort();
        memcpy(job->last, payloads[count - 1].bytes, job->last_length);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, size};
    struct job job = {.lanes = 1u << take(&input, 4), .block_size = 1 + take(&input, 70)};
    const p4reduce_membership membership = {
        .size = sizeof membership,
        .job = 7,
        .generation = 1,
        .world_size = 1 + take(&input, 32),
        .slots = 1 + take(&input, 5),
        .lanes = job.lanes,
        .block_size = job.block_size,
        .first_seq = UINT32_MAX - 3, // round numbers soon wrap around; even
    };
    job.worker = p4reduce_worker_new(&membership, NULL, NULL);
    if (job.worker == NULL)
        abort();
    submit(&job, &input);
    take_packets(&job);
    while (input.left > 0) {
        const unsigned kind = take(&input, 8);
        job.now += take(&input, 256) * 0.001;
        if (kind == 0) {
            size_t length = take(&input, 256);
            length = length < input.left ? length : input.left;
            receive(&job, input.bytes, length);
            input.bytes += length;
            input.left -= length;
        } else if (kind == 1) {
            p4reduce_worker_tick(job.worker, job.now);
        } else if (kind == 2) {
            submit(&job, &input);
        } else {
            answer(&job, &input);
        }
        take_packets(&job);
    }
    p4reduce_worker_free(job.worker);
    for (unsigned i = 0; i < job.operations; i++)
        free(job.arrays[i]);
    return 0;
}
