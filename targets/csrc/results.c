// SPDX-License-Identifier: Apache-2.0
#include "results.h"

#include <stdlib.h>
#include <string.h>

#include "wire/bytes.h"

static unsigned bucket_of(unsigned job, unsigned group) {
    return (job ^ group >> 6) % DELIVERIES;
}

// Returns whether all replicas of the group go to UDP ports, are addressed by TABLE_WORKERS, and have no simulated
// loss.
static bool is_direct(const struct results *results, const struct plane *plane, struct delivery *delivery) {
    const struct group *group = plane->groups[delivery->group];
    delivery->workers = 0;
    if (delivery->group == 0 || group == NULL || group->count > MAX_WORKERS)
        return false;
    for (size_t at = 0; at < group->count; at++) {
        const struct replica *replica = &group->replicas[at];
        struct port *port = results->ports[replica->port];
        const struct action *loss = table_apply(&plane->tables[TABLE_LOSS_OUT], &(struct key){{replica->port}}, NULL);
        const struct key worker = key_of_worker((uint16_t)delivery->job, replica->instance);
        const struct action *address = table_apply(&plane->tables[TABLE_WORKERS], &worker, NULL);
        const struct ip ip = ip_of_words(&address->arguments[ADDRESS_IP]);
        if (port == NULL || !port->kind->udp || loss->id == ACTION_LOSE || replica->instance == 0 ||
            address->id != ACTION_ADDRESS || replica->port == plane->layout.cpu_port)
            return false;
        struct udp_port *udp = (struct udp_port *)(void *)port;
        if (ip_is_ipv4(ip) != ip_is_ipv4(udp->ip))
            return false; // the general path drops such a RESULT
        delivery->worker[at] =
            (struct destination){.port = udp, .ip = ip, .udp_port = (uint16_t)address->arguments[ADDRESS_UDP_PORT]};
    }
    delivery->workers = (unsigned)group->count;
    return true;
}

struct delivery *results_delivery(struct results *results, const struct plane *plane, unsigned job, unsigned group) {
    unsigned bucket = bucket_of(job, group);
    struct delivery *delivery = results->deliveries[bucket];
    if (delivery == NULL) {
        delivery = results->deliveries[bucket] = calloc(1, sizeof *delivery);
        if (delivery == NULL)
            return NULL;
    }
    if (!delivery->valid || delivery->job != job || delivery->group != group) {
        results_flush(results);
        delivery->job = job;
        delivery->group = group;
        delivery->direct = is_direct(results, plane, delivery);
        delivery->valid = true;
    }
    return delivery->direct ? delivery : NULL;
}

static void send_batch(const struct results *results, const struct delivery *delivery, struct batch *batch) {
    batches_flush(results->replies);
    for (unsigned worker = 0; worker < delivery->workers; worker++)
        udp_send_batch(&delivery->worker[worker], results->thread, batch);
    batch->count = 0;
}

void results_add(struct results *results, const struct slots *slots, struct delivery *delivery, const struct half *half,
                 const uint8_t *header, unsigned active, unsigned ecn) {
    size_t lane_size = lane_length(&slots->layout);
    unsigned lanes = lanes_in(active);
    struct batch *batch = &delivery->batches[lanes];
    if (half->marked)
        ecn = ECN_CE;
    if (batch->count != 0 && batch->ecn != ecn)
        send_batch(results, delivery, batch);
    batch->ecn = ecn;
    batch->size = bare_length(&slots->layout) + lanes * lane_size;
    uint8_t *result = batch_end(batch), *values = result + bare_length(&slots->layout);
    memcpy(result, header, AGGREGATION_SIZE);
    result[AGGREGATION_VERSION] = version_and_op(OP_RESULT);
    result[AGGREGATION_PRESENT] = (uint8_t)active;
    memcpy(result + AGGREGATION_SIZE, half_keys(half), keys_length(&slots->layout));
    if (active == all_lanes(&slots->layout)) {
        memcpy(values, half_lane(slots, half, 0), lanes * lane_size);
    } else {
        for (unsigned lane = 0; active >> lane != 0; lane++) {
            if ((active >> lane & 1) == 0)
                continue;
            memcpy(values, half_lane(slots, half, lane), lane_size);
            values += lane_size;
        }
    }
    batch->count++;
    results->unsent |= UINT64_C(1) << bucket_of(delivery->job, delivery->group);
    if (batch_is_full(batch))
        send_batch(results, delivery, batch);
}

void results_flush(struct results *results) {
    while (results->unsent != 0) {
        struct delivery *delivery = results->deliveries[__builtin_ctzll(results->unsent)];
        results->unsent &= results->unsent - 1;
        for (unsigned lanes = 0; lanes <= MAX_LANES; lanes++)
            if (delivery->batches[lanes].count != 0)
                send_batch(results, delivery, &delivery->batches[lanes]);
    }
}

void results_forget(struct results *results) {
    for (unsigned bucket = 0; bucket < DELIVERIES; bucket++)
        if (results->deliveries[bucket] != NULL)
            results->deliveries[bucket]->valid = false;
}

void results_destroy(struct results *results) {
    for (unsigned bucket = 0; bucket < DELIVERIES; bucket++)
        free(results->deliveries[bucket]);
}
