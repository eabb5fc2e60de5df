// SPDX-License-Identifier: Apache-2.0
#include "simulator.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "network.h"
#include "wire/bytes.h"
#include "wire/headers.h"

struct simulation *simulator_new(uint64_t seed, size_t longest) {
    struct simulation *simulation = calloc(1, sizeof *simulation);
    if (simulation != NULL) {
        simulation->seed = seed;
        simulation->longest = longest;
        simulation->digest = UINT64_C(0xCBF29CE484222325);
    }
    return simulation;
}

static void free_all(void *items, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        free(((void **)items)[i]);
    free(items);
}

void simulator_free(struct simulation *simulation) {
    if (simulation == NULL)
        return;
    free(simulation->calendar.events);
    packets_free(simulation);
    simulator_end_capture(simulation);
    player_free(simulation->player);
    for (unsigned i = 0; i < simulation->node_count; i++)
        if (simulation->nodes[i]->is_host)
            p4reduce_worker_free(simulation->nodes[i]->as_host.worker);
    for (unsigned i = 0; i < simulation->link_count; i++)
        free(simulation->links[i]->recorded);
    free_all(simulation->nodes, simulation->node_count);
    free_all(simulation->links, simulation->link_count);
    free_all(simulation->operations, simulation->operation_count);
    free(simulation->ranks);
    free(simulation);
}

// Adds a pointer to an array whose room is the next power of two. Returns its index or -ENOMEM.
static int append(void *array, unsigned *count, void *item) {
    void **items;
    memcpy(&items, array, sizeof items);
    if (item == NULL)
        return -ENOMEM;
    if ((*count & (*count - 1)) == 0) {
        items = realloc(items, (*count == 0 ? 1 : 2 * (size_t)*count) * sizeof *items);
        if (items == NULL)
            return -ENOMEM;
        memcpy(array, &items, sizeof items);
    }
    items[*count] = item;
    return (int)(*count)++;
}

static int add_node(struct simulation *simulation, struct node *node) {
    const int index = append(&simulation->nodes, &simulation->node_count, node);
    if (index < 0)
        free(node);
    return index;
}

int simulator_add_switch(struct simulation *simulation, struct native_switch *native, struct plane *plane,
                         const struct simulator_switch *settings) {
    struct node *node = calloc(1, sizeof *node);
    if (node != NULL)
        node->as_switch = (struct switch_node){.settings = *settings, .native = native, .plane = plane};
    return add_node(simulation, node);
}

int simulator_add_host(struct simulation *simulation, const struct simulator_host *settings) {
    struct node *node = calloc(1, sizeof *node);
    if (node != NULL) {
        node->is_host = true;
        node->as_host = (struct host_node){.settings = *settings, .turn_at = UINT64_MAX};
    }
    return add_node(simulation, node);
}

int simulator_add_link(struct simulation *simulation, unsigned from, unsigned from_port, unsigned to, unsigned to_port,
                       const struct simulator_link *settings) {
    if (from >= simulation->node_count || to >= simulation->node_count || from_port >= SWITCH_PORTS ||
        to_port >= SWITCH_PORTS)
        return -EINVAL;
    struct node *node = simulation->nodes[from];
    struct link *none = NULL; // a switch that only forwards messages, along their paths
    struct link **place = node->is_host                    ? &node->as_host.link
                          : node->as_switch.native == NULL ? &none
                                                           : &node->as_switch.ports[from_port];
    if (*place != NULL)
        return -EEXIST;
    struct link *link = calloc(1, sizeof *link);
    const int index = append(&simulation->links, &simulation->link_count, link);
    if (index < 0) {
        free(link);
        return index;
    }
    uint64_t seed = simulation->seed ^ (uint64_t)index << 32; // a sequence of its own for each link
    *link = (struct link){.settings = *settings,
                          .number = (uint32_t)index,
                          .to = simulation->nodes[to],
                          .to_port = to_port,
                          .random = random_next(&seed)};
    *place = link;
    return index;
}

int simulator_add_rank(struct simulation *simulation, unsigned host, const p4reduce_membership *membership,
                       const p4reduce_timing *timing, const struct simulator_aggregator *aggregators, unsigned count,
                       p4reduce_error *error) {
    if (host >= simulation->node_count || !simulation->nodes[host]->is_host || count == 0 || count > MOST_AGGREGATORS)
        return -EINVAL;
    struct host_node *self = &simulation->nodes[host]->as_host;
    if (self->worker != NULL)
        return -EEXIST;
    self->worker = p4reduce_worker_new(membership, timing, error);
    if (self->worker == NULL || p4reduce_worker_set_aggregators(self->worker, count, error) != P4REDUCE_OK)
        return -EINVAL;
    self->job = (uint16_t)membership->job;
    self->generation = (uint16_t)membership->generation;
    memcpy(self->aggregators, aggregators, count * sizeof *aggregators);
    self->aggregator_count = count;
    return append(&simulation->ranks, &simulation->rank_count, simulation->nodes[host]);
}

int simulator_submit(struct simulation *simulation, unsigned rank, const p4reduce_request *request, uint64_t at) {
    if (rank >= simulation->rank_count || at < simulation->now)
        return -EINVAL;
    struct operation *operation = calloc(1, sizeof *operation);
    const int index = append(&simulation->operations, &simulation->operation_count, operation);
    if (index < 0) {
        free(operation);
        return index;
    }
    *operation = (struct operation){.state = {.rank = rank, .status = -1},
                                    .request = *request,
                                    .simulation = simulation,
                                    .host = simulation->ranks[rank]};
    simulation->pending++;
    calendar_add(&simulation->calendar, at, EVENT_START, operation);
    return index;
}

void simulator_record(struct simulation *simulation, uint64_t interval, uint64_t from) {
    simulation->interval = interval;
    simulation->record_from = from;
}

static void digest_arrival(struct simulation *simulation, const struct packet *packet) {
    digest_add(simulation, (uint64_t)packet->link->number << 32 | packet->length);
    if (packet->message != NULL)
        return;
    const uint8_t *header = packet->frame + UDP_HEADERS_SIZE;
    if (packet->length >= UDP_HEADERS_SIZE + AGGREGATION_SIZE) {
        digest_add(simulation, (uint64_t)load_32(header) << 32 | load_32(header + AGGREGATION_JOB));
        digest_add(simulation, (uint64_t)load_32(header + AGGREGATION_SLOT) << 32 | load_32(header + 12));
    }
}

static void happen(struct simulation *simulation, const struct event *event) {
    simulation->now = event->time;
    simulation->happened++;
    digest_add(simulation, event->time);
    if (event->kind == EVENT_ARRIVAL) {
        struct packet *packet = event->object;
        digest_arrival(simulation, packet);
        if (simulation->capture != NULL)
            capture_packet(simulation, packet);
        if (packet->message != NULL)
            message_receive(simulation, packet);
        else if (packet->link->to->is_host)
            host_receive(simulation, packet->link->to, packet);
        else
            switch_receive(simulation, packet->link->to, packet);
    } else if (event->kind == EVENT_TURN) {
        host_turn(simulation, event->object);
    } else if (event->kind == EVENT_START) {
        host_start(simulation, event->object);
    } else if (event->kind == EVENT_SEND) {
        message_send(simulation, event->object);
    } else {
        message_end(simulation, event->object);
    }
}

long simulator_run(struct simulation *simulation, uint64_t until, uint64_t events) {
    struct calendar *calendar = &simulation->calendar;
    const uint64_t end = simulation->happened + events;
    while (simulation->pending > 0 && calendar->count > 0 && calendar->events[0].time <= until &&
           simulation->happened < end) {
        const struct event event = calendar_take(calendar);
        happen(simulation, &event);
        if (simulation->out_of_memory || calendar->overflow)
            return -ENOMEM;
    }
    return simulation->pending;
}

uint64_t simulator_now(const struct simulation *simulation) {
    return simulation->now;
}

uint64_t simulator_events(const struct simulation *simulation) {
    return simulation->happened;
}

uint64_t simulator_digest(const struct simulation *simulation) {
    return simulation->digest;
}

uint64_t simulator_strays(const struct simulation *simulation) {
    return simulation->strays;
}

void simulator_link_counts(const struct simulation *simulation, unsigned link, struct simulator_link_counts *counts) {
    *counts = simulation->links[link]->counts;
}

const uint64_t *simulator_recorded(const struct simulation *simulation, unsigned link, size_t *count) {
    *count = simulation->links[link]->recorded_count;
    return simulation->links[link]->recorded;
}

void simulator_operation(const struct simulation *simulation, unsigned operation, struct simulator_operation *state,
                         p4reduce_error *error) {
    *state = simulation->operations[operation]->state;
    *error = simulation->operations[operation]->error;
}

void simulator_rank_stats(const struct simulation *simulation, unsigned rank, p4reduce_stats *stats) {
    p4reduce_worker_stats(simulation->ranks[rank]->as_host.worker, stats);
}
