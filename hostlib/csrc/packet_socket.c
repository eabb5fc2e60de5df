// SPDX-License-Identifier: Apache-2.0
// Whole Ethernet frames through an AF_PACKET socket: they are read where the kernel has put them, in a ring that it
// shares with us (TPACKET_V3), or received in batches where it gives no ring.
#include "link.h"
#include "structures.h"

#include <linux/if_packet.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

enum {
    ETHERNET_BYTES = 14,
    IPV4_BYTES = 20,
    UDP_BYTES = 8,
    HEADERS_BYTES = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES,
    BATCH = 64,
    RING_BYTES = 4 << 20,
    // What the kernel puts before a frame in the ring, at most.
    RING_HEADERS_BYTES = 256,
    // The kernel hands over a block when it is full, or after this time. So blocks are small, of few frames: under
    // load, the next frames fill a block at once, and only the last of a burst wait.
    BLOCK_TIMEOUT_MS = 1,
};

struct packet_socket {
    struct link link;
    const struct layout *layout;
    uint8_t headers[MAX_LANES + 1][HEADERS_BYTES]; // of a frame for each number of lanes
    // The ring, if there is one.
    uint8_t *ring;
    size_t block_size;
    unsigned blocks, next_block;
    // Or room for a batch of frames.
    uint8_t *frames;
    size_t frame_size;
    struct mmsghdr messages[BATCH];
    struct iovec places[BATCH];
};

// RFC 1071, of a header whose checksum is 0.
static uint16_t internet_checksum(const uint8_t *header, size_t length) {
    uint32_t total = 0;
    for (size_t i = 0; i < length; i += 2)
        total += load_16(header + i);
    while (total >> 16)
        total = (total & 0xFFFF) + (total >> 16);
    return (uint16_t)~total;
}

static void make_headers(struct packet_socket *packet, const uint8_t *without_lengths) {
    for (unsigned lanes = 0; lanes <= packet->layout->lanes; lanes++) {
        uint8_t *headers = packet->headers[lanes], *ipv4 = headers + ETHERNET_BYTES, *udp = ipv4 + IPV4_BYTES;
        const size_t length = packet->layout->bare_length + lanes * packet->layout->lane_length;
        memcpy(headers, without_lengths, HEADERS_BYTES);
        store_16(ipv4 + 2, (uint16_t)(IPV4_BYTES + UDP_BYTES + length));
        store_16(ipv4 + 10, internet_checksum(ipv4, IPV4_BYTES));
        store_16(udp + 4, (uint16_t)(UDP_BYTES + length));
    }
}

// Hands over what the UDP datagram in a frame carries; a frame that is cut short is ignored. The socket's filter has
// seen to it that the frame is one from the switch to us.
static unsigned take_frame(p4reduce_worker *worker, const uint8_t *frame, size_t length, double now) {
    if (length < HEADERS_BYTES)
        return 0;
    const size_t udp_length = load_16(frame + HEADERS_BYTES - 4);
    if (udp_length < UDP_BYTES || ETHERNET_BYTES + IPV4_BYTES + udp_length > length)
        return 0;
    p4reduce_worker_receive(worker, frame + HEADERS_BYTES, udp_length - UDP_BYTES, now);
    return 1;
}

static unsigned receive_block(struct link *link, p4reduce_worker *worker, double now) {
    struct packet_socket *packet = (struct packet_socket *)link;
    unsigned taken = 0;
    while (taken == 0) {
        struct tpacket_block_desc *block = (void *)(packet->ring + packet->next_block * packet->block_size);
        struct tpacket_hdr_v1 *header = &block->hdr.bh1;
        if (!(__atomic_load_n(&header->block_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
            return 0;
        const uint8_t *place = (uint8_t *)block + header->offset_to_first_pkt;
        for (uint32_t i = 0; i < header->num_pkts; i++) {
            const struct tpacket3_hdr *frame = (const void *)place;
            taken += take_frame(worker, place + frame->tp_mac, frame->tp_snaplen, now);
            place += frame->tp_next_offset;
        }
        __atomic_store_n(&header->block_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        packet->next_block = (packet->next_block + 1) % packet->blocks;
    }
    link->trouble = 0;
    return taken;
}

static unsigned receive_batch(struct link *link, p4reduce_worker *worker, double now) {
    struct packet_socket *packet = (struct packet_socket *)link;
    int frames = recvmmsg(link->socket, packet->messages, BATCH, MSG_DONTWAIT, NULL);
    if (frames <= 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            link->trouble = errno; // the interface went down: told once
        return 0;
    }
    unsigned taken = 0;
    for (int i = 0; i < frames; i++)
        taken += take_frame(worker, packet->places[i].iov_base, packet->messages[i].msg_len, now);
    if (taken)
        link->trouble = 0;
    return (unsigned)frames;
}

static uint32_t send_frames(struct link *link, const struct iovec *payloads, uint32_t count) {
    struct packet_socket *packet = (struct packet_socket *)link;
    uint32_t done = 0;
    link->full = false;
    while (done < count) {
        struct mmsghdr messages[BATCH];
        struct iovec frames[BATCH];
        const uint32_t batch = count - done < BATCH ? count - done : BATCH;
        for (uint32_t i = 0; i < batch; i++) {
            const struct iovec *payload = &payloads[done + i];
            const size_t lanes = (payload->iov_len - packet->layout->bare_length) / packet->layout->lane_length;
            uint8_t *frame = (uint8_t *)payload->iov_base - HEADERS_BYTES;
            memcpy(frame, packet->headers[lanes], HEADERS_BYTES);
            frames[i] = (struct iovec){frame, HEADERS_BYTES + payload->iov_len};
            messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &frames[i], .msg_iovlen = 1}};
        }
        int sent = sendmmsg(link->socket, messages, batch, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && link_refused(link, errno))
            break;
        done += sent < 0 ? 1 : (uint32_t)sent; // a frame for which the interface's queue has no room is lost
    }
    return done;
}

static void describe_packet_socket(const struct link *link, char *text, size_t room) {
    const struct packet_socket *packet = (const struct packet_socket *)link;
    snprintf(text, room, packet->ring != NULL ? "AF_PACKET, TPACKET_V3 ring" : "AF_PACKET");
}

static void free_packet_socket(struct link *link) {
    struct packet_socket *packet = (struct packet_socket *)link;
    if (packet->ring != NULL)
        munmap(packet->ring, packet->blocks * packet->block_size);
    free(packet->frames);
    free(packet);
}

static bool open_ring(struct packet_socket *packet) {
    const char *wanted = getenv("P4REDUCE_OFFLOAD");
    if (wanted != NULL && strcmp(wanted, "none") == 0)
        return false;
    const int version = TPACKET_V3;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t block = page;
    while (block < HEADERS_BYTES + packet->layout->largest_length + RING_HEADERS_BYTES)
        block *= 2;
    const struct tpacket_req3 request = {
        .tp_block_size = (unsigned)block,
        .tp_block_nr = (unsigned)(RING_BYTES / block),
        .tp_frame_size = (unsigned)block, // frames of this version take as much room as they need
        .tp_frame_nr = (unsigned)(RING_BYTES / block),
        .tp_retire_blk_tov = BLOCK_TIMEOUT_MS,
    };
    const int socket = packet->link.socket;
    if (setsockopt(socket, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0 ||
        setsockopt(socket, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) != 0)
        return false;
    void *ring = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, socket, 0);
    if (ring == MAP_FAILED) {
        const struct tpacket_req3 none = {0};
        setsockopt(socket, SOL_PACKET, PACKET_RX_RING, &none, sizeof none);
        return false;
    }
    packet->ring = ring;
    packet->block_size = block;
    packet->blocks = request.tp_block_nr;
    return true;
}

struct link *packet_socket_open(int socket, const uint8_t *headers, const struct layout *layout,
                                p4reduce_error *error) {
    struct packet_socket *packet = calloc(1, sizeof *packet);
    if (packet == NULL)
        goto no_memory;
    packet->link = (struct link){.socket = socket,
                                 .receive = receive_block,
                                 .send = send_frames,
                                 .describe = describe_packet_socket,
                                 .free = free_packet_socket};
    packet->layout = layout;
    make_headers(packet, headers);
    const int on = 1;
    (void)setsockopt(socket, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on); // older kernels let us see them
    if (open_ring(packet))
        return &packet->link;
    packet->link.receive = receive_batch;
    packet->frame_size = HEADERS_BYTES + layout->largest_length;
    packet->frames = malloc(BATCH * packet->frame_size);
    if (packet->frames == NULL)
        goto no_memory;
    for (unsigned i = 0; i < BATCH; i++) {
        packet->places[i] = (struct iovec){packet->frames + i * packet->frame_size, packet->frame_size};
        packet->messages[i].msg_hdr = (struct msghdr){.msg_iov = &packet->places[i], .msg_iovlen = 1};
    }
    return &packet->link;

no_memory:
    error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an AF_PACKET link");
    free(packet);
    return NULL;
}
