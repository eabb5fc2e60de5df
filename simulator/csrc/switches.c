// SPDX-License-Identifier: Apache-2.0
#include "network.h"

#include <string.h>

struct output {
    uint32_t port;
    uint32_t length;
};

// Packets are handled in the order of their arrival, and each needs the same delay. So a plane may handle a packet when
// it arrives, and the packet's answers leave each link in order.
void switch_receive(struct simulation *simulation, struct node *node, struct packet *packet) {
    struct switch_node *self = &node->as_switch;
    const uint8_t *outputs;
    const long size =
        native_process(self->native, self->plane, packet->link->to_port, packet->frame, packet->length, &outputs);
    packet_free(simulation, packet);
    if (size < 0) {
        simulation->out_of_memory = true;
        return;
    }
    uint64_t free_at = (node->busy_until > simulation->now ? node->busy_until : simulation->now);
    free_at += self->settings.receive;
    for (const uint8_t *at = outputs; at < outputs + size;) {
        struct output output;
        memcpy(&output, at, sizeof output);
        at += sizeof output;
        struct packet *made = output.length <= simulation->longest ? packet_new(simulation) : NULL;
        free_at += self->settings.send;
        if (made != NULL) {
            made->length = output.length;
            memcpy(made->frame, at, output.length);
            link_send(simulation, self->ports[output.port], made, free_at + self->settings.delay);
        }
        at += output.length;
    }
    node->busy_until = free_at;
}
