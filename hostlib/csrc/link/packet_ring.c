// SPDX-License-Identifier: Apache-2.0
#include "link/packet_ring.h"

#include <linux/if_packet.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    RING_BYTES = 4 << 20,
    KERNEL_HEADERS_BYTES = 256, // the most bytes that the kernel puts before a frame
    BLOCK_TIMEOUT_MS = 1,
    BLOCKS_AT_ONCE = 16,
};

static bool ask_for_ring(int socket, const struct tpacket_req3 *request) {
    const int version = TPACKET_V3;
    return setsockopt(socket, SOL_PACKET, PACKET_VERSION, &version, sizeof version) == 0 &&
           setsockopt(socket, SOL_PACKET, PACKET_RX_RING, request, sizeof *request) == 0;
}

bool packet_ring_open(struct packet_ring *ring, int socket, size_t largest) {
    size_t block = (size_t)sysconf(_SC_PAGESIZE);
    while (block < largest + KERNEL_HEADERS_BYTES)
        block *= 2;
    const struct tpacket_req3 none = {0}, request = {
                                              .tp_block_size = (unsigned)block,
                                              .tp_block_nr = (unsigned)(RING_BYTES / block),
                                              .tp_frame_size = (unsigned)block, // frames take what room they need
                                              .tp_frame_nr = (unsigned)(RING_BYTES / block),
                                              .tp_retire_blk_tov = BLOCK_TIMEOUT_MS,
                                          };
    if (!ask_for_ring(socket, &request))
        return false;
    void *memory = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, socket, 0);
    if (memory == MAP_FAILED) {
        (void)ask_for_ring(socket, &none);
        return false;
    }
    *ring = (struct packet_ring){.memory = memory, .block_size = block, .blocks = request.tp_block_nr};
    return true;
}

unsigned packet_ring_receive(struct packet_ring *ring, take_frame_function *take, void *context, double now) {
    unsigned packets = 0;
    for (unsigned i = 0; i < BLOCKS_AT_ONCE || packets == 0; i++) {
        uint8_t *cursor = ring->memory + ring->next * ring->block_size;
        struct tpacket_hdr_v1 *block = &((struct tpacket_block_desc *)(void *)cursor)->hdr.bh1;
        if (!(__atomic_load_n(&block->block_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
            break;
        cursor += block->offset_to_first_pkt;
        for (uint32_t number = 0; number < block->num_pkts; number++) {
            const struct tpacket3_hdr *frame = (const void *)cursor;
            packets += take(context, cursor + frame->tp_mac, frame->tp_snaplen, now);
            cursor += frame->tp_next_offset;
        }
        __atomic_store_n(&block->block_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        ring->next = (ring->next + 1) % ring->blocks;
    }
    return packets;
}

void packet_ring_close(struct packet_ring *ring) {
    if (ring->memory != NULL)
        munmap(ring->memory, RING_BYTES);
    ring->memory = NULL;
}
