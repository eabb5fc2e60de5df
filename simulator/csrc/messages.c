// SPDX-License-Identifier: Apache-2.0
// Messages between hosts, by which systems without help of switches are simulated. Their sizes, order and dependencies
// are a schedule that the caller computes; here they are cut into packets, which have no contents.
//
// A host sends its next packet when its link is free, so that no more than one waits there. Switches forward packets
// along the message's path, and links queue them, as they do for all packets.
#include "network.h"

#include <errno.h>
#include <stdlib.h>

struct sender {
    struct node *node;
    struct message *first, *last; // may be sent; the first one is under way
    bool is_sending;              // an EVENT_SEND is in the calendar
};

struct message {
    struct simulator_message *state;
    struct message *next; // of the sender
    uint64_t unsent;
    uint64_t packets; // not received yet
    uint32_t waits_for;
};

struct player {
    struct simulator_messages given;
    struct message *messages;
    struct sender *senders; // by node
};

static void plan_send(struct simulation *simulation, struct sender *sender, uint64_t at) {
    sender->is_sending = true;
    calendar_add(&simulation->calendar, at, EVENT_SEND, sender);
}

static void make_ready(struct simulation *simulation, struct message *message) {
    struct sender *sender = &simulation->player->senders[message->state->source];
    message->next = NULL;
    if (sender->first == NULL)
        sender->first = message;
    else
        sender->last->next = message;
    sender->last = message;
    if (!sender->is_sending)
        plan_send(simulation, sender, simulation->now);
}

static bool fits(const struct simulation *simulation, const struct simulator_messages *given) {
    for (uint32_t i = 0; i < given->count; i++)
        if (given->messages[i].source >= simulation->node_count ||
            !simulation->nodes[given->messages[i].source]->is_host)
            return false;
    return given->payload > 0;
}

int simulator_start_messages(struct simulation *simulation, const struct simulator_messages *messages) {
    if (simulation->player != NULL || !fits(simulation, messages))
        return -EINVAL;
    struct player *player = simulation->player = calloc(1, sizeof *player);
    if (player == NULL)
        return -ENOMEM;
    player->given = *messages;
    player->messages = calloc(messages->count + 1, sizeof *player->messages);
    player->senders = calloc(simulation->node_count, sizeof *player->senders);
    if (player->messages == NULL || player->senders == NULL)
        return -ENOMEM;
    for (unsigned i = 0; i < simulation->node_count; i++)
        player->senders[i].node = simulation->nodes[i];
    for (uint32_t i = 0; i < messages->count; i++) {
        struct simulator_message *state = &messages->messages[i];
        const uint64_t packets = (state->bytes + messages->payload - 1) / messages->payload;
        player->messages[i] = (struct message){.state = state,
                                               .unsent = state->bytes,
                                               .packets = packets > 0 ? packets : 1,
                                               .waits_for = state->waits_for};
        if (state->waits_for == 0)
            make_ready(simulation, &player->messages[i]);
    }
    simulation->pending += messages->count;
    return 0;
}

static uint64_t part_of(const struct player *player, uint64_t bytes) {
    return bytes < player->given.payload ? bytes : player->given.payload;
}

// Uses a host's processor from now on, when it is free. Returns the time at which it is done.
static uint64_t use_processor(const struct simulation *simulation, struct node *node, uint64_t time) {
    node->busy_until = (node->busy_until > simulation->now ? node->busy_until : simulation->now) + time;
    return node->busy_until;
}

void message_send(struct simulation *simulation, void *object) {
    struct sender *sender = object;
    struct message *message = sender->first;
    sender->is_sending = false;
    if (message == NULL)
        return;
    const struct player *player = simulation->player;
    const struct simulator_host *costs = &sender->node->as_host.settings;
    struct link *link = simulation->links[player->given.paths[message->state->path]];
    struct packet *packet = packet_new(simulation);
    if (packet == NULL)
        return;
    const uint64_t part = part_of(player, message->unsent);
    const uint64_t at = use_processor(simulation, sender->node, costs->send + part * costs->send_byte);
    if (message->unsent == message->state->bytes)
        message->state->started = at;
    packet->length = player->given.headers + part;
    packet->message = message;
    packet->hop = 0;
    link_send(simulation, link, packet, at);
    message->unsent -= part;
    if (message->unsent == 0)
        sender->first = message->next;
    plan_send(simulation, sender, link->free_at > at ? link->free_at : at);
}

void message_receive(struct simulation *simulation, struct packet *packet) {
    const struct player *player = simulation->player;
    struct message *message = packet->message;
    struct node *node = packet->link->to;
    const uint32_t next = player->given.paths[message->state->path + ++packet->hop];
    if (next != SIMULATOR_PATH_END) {
        link_send(simulation, simulation->links[next], packet, simulation->now + node->as_switch.settings.delay);
        return;
    }
    const struct simulator_host *costs = &node->as_host.settings;
    const uint64_t part = packet->length - player->given.headers;
    const uint64_t done = use_processor(simulation, node, costs->receive + part * costs->receive_byte);
    packet_free(simulation, packet);
    if (--message->packets == 0)
        calendar_add(&simulation->calendar, done, EVENT_RECEIVED, message);
}

void message_end(struct simulation *simulation, struct message *message) {
    struct player *player = simulation->player;
    message->state->ended = simulation->now;
    simulation->pending--;
    const uint32_t *successors = &player->given.successors[message->state->after];
    for (uint32_t i = 0; i < message->state->after_count; i++) {
        struct message *other = &player->messages[successors[i]];
        if (--other->waits_for == 0)
            make_ready(simulation, other);
    }
}

void player_free(struct player *player) {
    if (player == NULL)
        return;
    free(player->messages);
    free(player->senders);
    free(player);
}
