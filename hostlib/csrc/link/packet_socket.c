// SPDX-License-Identifier: Apache-2.0
// The link of whole Ethernet frames through AF_PACKET sockets. Long operations receive from a ring, which takes the
// least processor time. Short ones receive in batches from a second socket, because the last packets of a burst may
// wait in a ring for a millisecond. A short operation would wait twice: it takes 2.0 ms by the ring, 0.2 ms by the
// second socket.
#include "base/min.h"
#include "base/structures.h"
#include "link/link.h"
#include "link/packet_ring.h"

#include <linux/filter.h>
#include <linux/if_packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    BATCH = 64,
    MOST_INSTRUCTIONS = 64,        // in the socket's filter
    LONG_OPERATION_PACKETS = 2048, // from this size on, the ring is faster
};

struct packet_socket {
    struct link link;
    const struct layout *layout;
    size_t headers_size;
    uint8_t headers[MAX_LANES + 1][UDP_IPV6_HEADERS_SIZE]; // headers of a frame, for each number of lanes
    struct packet_ring ring;                               // the ring of the caller's socket, if it has one
    int ring_socket;
    int batch_socket; // our own, or the caller's if there is no ring
    struct sock_filter filter[MOST_INSTRUCTIONS];
    unsigned short instructions;
    // Room for a batch of frames.
    uint8_t *frames;
    size_t frame_size;
    struct mmsghdr messages[BATCH];
    struct iovec iovecs[BATCH];
};

// Returns the checksum of RFC 1071 of a header whose checksum field is 0.
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
        uint8_t *headers = packet->headers[lanes], *ip = headers + ETHERNET_SIZE;
        uint8_t *udp = headers + packet->headers_size - UDP_SIZE;
        const uint32_t length =
            (uint32_t)(UDP_SIZE + packet->layout->bare_length + lanes * packet->layout->lane_length);
        memcpy(headers, without_lengths, packet->headers_size);
        store_16(udp + UDP_LENGTH, length);
        if (packet->headers_size == UDP_IPV6_HEADERS_SIZE) {
            ipv6_set_ecn(ip, ECN_ECT_0);
            store_16(ip + IPV6_PAYLOAD_LENGTH, length);
        } else {
            ip[IPV4_TOS] = (uint8_t)((ip[IPV4_TOS] & ~ECN_MASK) | ECN_ECT_0);
            store_16(ip + IPV4_TOTAL_LENGTH, IPV4_SIZE + length);
            store_16(ip + IPV4_CHECKSUM, internet_checksum(ip, IPV4_SIZE));
        }
    }
}

// Hands over the payload of the UDP datagram in a frame. A frame that is cut short is ignored. The socket's filter
// passes only frames from the switch to us.
static unsigned take_frame(void *worker, const uint8_t *frame, size_t length, double now) {
    if (length < UDP_HEADERS_SIZE)
        return 0;
    const size_t headers = frame_headers_size(frame);
    if (length < headers)
        return 0;
    const size_t udp_length = load_16(frame + headers - UDP_SIZE + UDP_LENGTH);
    if (udp_length < UDP_SIZE || headers - UDP_SIZE + udp_length > length)
        return 0;
    const uint8_t *ip = frame + ETHERNET_SIZE;
    const unsigned ecn = headers == UDP_IPV6_HEADERS_SIZE ? ipv6_ecn(ip) : ip[IPV4_TOS] & ECN_MASK;
    worker_receive(worker, frame + headers, udp_length - UDP_SIZE, ecn == ECN_CE, now);
    return 1;
}

static unsigned receive_batch(struct packet_socket *packet, p4reduce_worker *worker, double now) {
    int frames = recvmmsg(packet->batch_socket, packet->messages, BATCH, MSG_DONTWAIT, NULL);
    if (frames <= 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            packet->link.trouble = errno; // the interface went down, which the kernel reports once
        return 0;
    }
    unsigned taken = 0;
    for (int i = 0; i < frames; i++)
        taken += take_frame(worker, packet->iovecs[i].iov_base, packet->messages[i].msg_len, now);
    return taken;
}

static unsigned receive_frames(struct link *link, p4reduce_worker *worker, double now) {
    struct packet_socket *packet = (struct packet_socket *)link;
    unsigned taken = link->socket == packet->batch_socket ? receive_batch(packet, worker, now)
                                                          : packet_ring_receive(&packet->ring, take_frame, worker, now);
    if (taken)
        link->trouble = 0;
    return taken;
}

static bool filter_socket(int socket, struct sock_filter *filter, unsigned short instructions) {
    const struct sock_fprog program = {instructions, filter};
    return setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

// Chooses the socket for an operation. Nothing is under way, so no packet is lost or received twice by the change.
static void expect(struct link *link, uint64_t packets) {
    struct packet_socket *packet = (struct packet_socket *)link;
    struct sock_filter nothing[] = {{BPF_RET | BPF_K, 0, 0, 0}};
    const int wanted =
        packet->ring.memory != NULL && packets >= LONG_OPERATION_PACKETS ? packet->ring_socket : packet->batch_socket;
    if (wanted == link->socket)
        return;
    if (filter_socket(wanted, packet->filter, packet->instructions) && filter_socket(link->socket, nothing, 1))
        link->socket = wanted;
}

// Writes the headers of a frame before its payload, and returns the frame. Copies of constant length are quick.
static uint8_t *put_headers(const struct packet_socket *packet, const struct iovec *payload) {
    const size_t lanes = (payload->iov_len - packet->layout->bare_length) / packet->layout->lane_length;
    uint8_t *frame = (uint8_t *)payload->iov_base - packet->headers_size;
    if (packet->headers_size == UDP_HEADERS_SIZE)
        memcpy(frame, packet->headers[lanes], UDP_HEADERS_SIZE);
    else
        memcpy(frame, packet->headers[lanes], UDP_IPV6_HEADERS_SIZE);
    return frame;
}

static uint32_t send_frames(struct link *link, const struct iovec *payloads, uint32_t count, bool *grouped) {
    struct packet_socket *packet = (struct packet_socket *)link;
    uint32_t done = 0;
    link->full = false;
    while (done < count) {
        struct mmsghdr messages[BATCH];
        struct iovec frames[BATCH];
        const uint32_t batch = (uint32_t)min_of(count - done, BATCH);
        for (uint32_t i = 0; i < batch; i++) {
            const struct iovec *payload = &payloads[done + i];
            frames[i] = (struct iovec){put_headers(packet, payload), packet->headers_size + payload->iov_len};
            messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &frames[i], .msg_iovlen = 1}};
        }
        int sent = sendmmsg(link->socket, messages, batch, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && link_refused(link, errno))
            break;
        const uint32_t passed = sent < 0 ? 1 : (uint32_t)sent; // a packet that the kernel refuses is lost
        memset(grouped + done, false, passed * sizeof *grouped);
        done += passed;
    }
    return done;
}

static void describe_packet_socket(const struct link *link, char *text, size_t room) {
    const struct packet_socket *packet = (const struct packet_socket *)link;
    snprintf(text, room, "AF_PACKET%s", packet->ring.memory != NULL ? ", TPACKET_V3 ring" : "");
}

static void free_packet_socket(struct link *link) {
    struct packet_socket *packet = (struct packet_socket *)link;
    if (packet->batch_socket != packet->ring_socket)
        close(packet->batch_socket);
    packet_ring_close(&packet->ring);
    free(packet->frames);
    free(packet);
}

// Opens a socket on the caller's interface, which receives nothing yet. Returns -1 on error.
static int second_socket(struct packet_socket *packet) {
    struct sockaddr_ll address;
    socklen_t size = sizeof address, instructions = MOST_INSTRUCTIONS;
    struct sock_filter nothing[] = {{BPF_RET | BPF_K, 0, 0, 0}};
    // In this option, and only there, the size counts instructions.
    if (getsockname(packet->ring_socket, (struct sockaddr *)&address, &size) != 0 ||
        getsockopt(packet->ring_socket, SOL_SOCKET, SO_GET_FILTER, packet->filter, &instructions) != 0 ||
        instructions == 0)
        return -1;
    packet->instructions = (unsigned short)instructions;
    // Protocol 0 receives nothing, so no unfiltered frame arrives before the filter is attached.
    int own = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const int buffer = 4 << 20;
    if (own >= 0 && setsockopt(own, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer) != 0)
        (void)setsockopt(own, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    if (own >= 0 &&
        (!filter_socket(own, nothing, 1) || bind(own, (const struct sockaddr *)&address, sizeof address) != 0)) {
        close(own);
        own = -1;
    }
    return own;
}

// Opens a ring and a second socket. If the kernel refuses either, or P4REDUCE_RING is "none", one socket is used alone.
static void open_ring(struct packet_socket *packet) {
    const char *wanted = getenv("P4REDUCE_RING");
    if (wanted != NULL && strcmp(wanted, "none") == 0)
        return;
    const int own = second_socket(packet);
    if (own < 0)
        return;
    packet->batch_socket = own;
    if (packet_ring_open(&packet->ring, packet->ring_socket, packet->headers_size + packet->layout->largest_length)) {
        expect(&packet->link, 0);
    } else {
        packet->batch_socket = packet->ring_socket;
        close(own);
    }
}

struct link *packet_socket_open(int socket, const uint8_t *headers, const struct layout *layout,
                                p4reduce_error *error) {
    _Static_assert((int)HEADROOM_BYTES >= (int)UDP_IPV6_HEADERS_SIZE, "there is room for the headers before a payload");
    const size_t headers_size = frame_headers_size(headers), frame_size = headers_size + layout->largest_length;
    if (headers_size == 0) {
        error_tell(error, P4REDUCE_INVALID, "headers have EtherType 0x%04x: accepted are 0x%04x (IPv4), 0x%04x (IPv6)",
                   (unsigned)load_16(headers + ETHERNET_TYPE), (unsigned)ETHERTYPE_IPV4, (unsigned)ETHERTYPE_IPV6);
        return NULL;
    }
    struct packet_socket *packet = calloc(1, sizeof *packet);
    if (packet != NULL)
        packet->frames = malloc(BATCH * frame_size);
    if (packet == NULL || packet->frames == NULL) {
        error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an AF_PACKET link");
        free(packet);
        return NULL;
    }
    packet->link = (struct link){.socket = socket,
                                 .expect = expect,
                                 .receive = receive_frames,
                                 .send = send_frames,
                                 .describe = describe_packet_socket,
                                 .free = free_packet_socket};
    packet->ring_socket = packet->batch_socket = socket;
    packet->layout = layout;
    packet->headers_size = headers_size;
    make_headers(packet, headers);
    for (unsigned i = 0; i < BATCH; i++) {
        packet->iovecs[i] = (struct iovec){packet->frames + i * frame_size, frame_size};
        packet->messages[i].msg_hdr = (struct msghdr){.msg_iov = &packet->iovecs[i], .msg_iovlen = 1};
    }
    open_ring(packet);
    return &packet->link;
}
