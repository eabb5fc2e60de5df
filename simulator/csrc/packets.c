// SPDX-License-Identifier: Apache-2.0
// The memory of packets. It comes from the kernel in large pieces, so that all of it goes back at the end, whatever else
// was allocated meanwhile.
#include <sys/mman.h>

#include "base/align.h"
#include "network.h"

enum { SLAB_PACKETS = 1024 };

struct slab {
    struct slab *next;
    size_t size;
};

static bool make_packets(struct simulation *simulation) {
    const size_t unit = _Alignof(struct packet), head = align_up(sizeof(struct slab), unit);
    const size_t stride = align_up(sizeof(struct packet) + simulation->longest, unit);
    const size_t size = head + SLAB_PACKETS * stride;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    struct slab *slab = memory;
    *slab = (struct slab){.next = simulation->slabs, .size = size};
    simulation->slabs = slab;
    for (size_t i = SLAB_PACKETS; i-- > 0;) // the first is used first
        packet_free(simulation, (struct packet *)(void *)((uint8_t *)memory + head + i * stride));
    return true;
}

struct packet *packet_new(struct simulation *simulation) {
    if (simulation->free_packets == NULL && !make_packets(simulation)) {
        simulation->out_of_memory = true;
        return NULL;
    }
    struct packet *packet = simulation->free_packets;
    simulation->free_packets = packet->next;
    packet->message = NULL;
    return packet;
}

void packet_free(struct simulation *simulation, struct packet *packet) {
    packet->next = simulation->free_packets;
    simulation->free_packets = packet;
}

void packets_free(struct simulation *simulation) {
    while (simulation->slabs != NULL) {
        struct slab *slab = simulation->slabs;
        simulation->slabs = slab->next;
        munmap(slab, slab->size);
    }
}
