// SPDX-License-Identifier: Apache-2.0
// A network interface is read through a ring that the kernel fills: TPACKET_V2, since V3 delays packets until a block
// of the ring is full. The owner of a slot of the ring is in its `tp_status`: it is loaded with acquire before the slot
// is read, and stored with release when the slot is returned to the kernel. Other sockets are read a message at a time.
#include "ports_ethernet.h"

#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "offload.h"
#include "packet.h"
#include "pipeline.h"
#include "sockets.h"
#include "thread.h"

#define RING_SIZE (16U << 20)
#define SMALLEST_SLOT 2048U
#define MAX_FRAMES 256 // in a row, before another port is served
#define OUT_FRAMES 64
#define OUT_BUFFER_SIZE (128U << 10)

// Frames to send at the next `flush`.
struct outgoing {
    unsigned count;
    size_t used;
    struct mmsghdr messages[OUT_FRAMES];
    struct iovec pieces[OUT_FRAMES];
    uint8_t memory[OUT_BUFFER_SIZE];
};

struct frame_port {
    struct port port;
    int socket;
    size_t offload_size; // of the header for offloads in front of each frame; 0: none
    uint8_t *ring;       // NULL: frames are received one by one
    uint8_t *large;      // buffer for a frame that does not fit into a slot of the ring
    unsigned slot_size;
    unsigned slots;
    unsigned next;
    struct outgoing *outgoing[MAX_THREADS]; // made when first used
};

static int descriptor(const struct port *port, unsigned thread) {
    (void)thread;
    return ((const struct frame_port *)(const void *)port)->socket;
}

// --- in --------------------------------------------------------------------------------------------------------------

// A frame in a slot of the ring. `tagged`: the kernel has removed a VLAN tag from it.
struct arrival {
    struct virtio_net_hdr offload;
    const uint8_t *data;
    size_t length;
    bool tagged;
    unsigned tag_type, tag;
};

// Returns false for a truncated frame.
static bool read_slot(struct frame_port *self, const uint8_t *slot, uint32_t status, struct arrival *arrival) {
    const struct tpacket2_hdr *header = (const struct tpacket2_hdr *)(const void *)slot;
    arrival->tagged = (status & TP_STATUS_VLAN_VALID) != 0;
    arrival->tag_type = (status & TP_STATUS_VLAN_TPID_VALID) != 0 ? header->tp_vlan_tpid : ETH_P_8021Q;
    arrival->tag = header->tp_vlan_tci;
    const uint8_t *offload = slot + header->tp_mac - sizeof arrival->offload;
    arrival->data = slot + header->tp_mac;
    arrival->length = header->tp_snaplen;
    if ((status & TP_STATUS_COPY) != 0) { // larger than a slot: the whole frame is in the socket's queue
        ssize_t size = recv(self->socket, self->large, MAX_FRAME, MSG_DONTWAIT);
        if (size < (ssize_t)self->offload_size)
            return false;
        offload = self->large;
        arrival->data = self->large + self->offload_size;
        arrival->length = (size_t)size - self->offload_size;
    } else if (header->tp_snaplen != header->tp_len) {
        return false;
    }
    memcpy(&arrival->offload, offload, sizeof arrival->offload);
    return arrival->length <= MAX_FRAME - VLAN_SIZE;
}

// Processes a frame of `length` bytes, which begins `tag_size` bytes after the context's: that is the room for its tag.
static void process(struct frame_port *self, struct thread *thread, const struct arrival *arrival, size_t tag_size,
                    size_t length) {
    uint8_t *frame = context_frame(&thread->context);
    if (tag_size != 0) {
        memmove(frame, frame + tag_size, ETHERNET_TYPE);
        store_16(frame + ETHERNET_TYPE, arrival->tag_type);
        store_16(frame + ETHERNET_TYPE + sizeof(uint16_t), arrival->tag);
    }
    pipeline_process(&thread->context, self->port.number, tag_size + length);
}

static void process_arrival(struct frame_port *self, struct thread *thread, const struct arrival *arrival) {
    size_t tag_size = arrival->tagged ? VLAN_SIZE : 0;
    uint8_t *frame = context_frame(&thread->context) + tag_size;
    size_t length, at = 0;
    if (is_udp_gso(&arrival->offload, arrival->data, arrival->length)) {
        while ((length = extract_segment(&arrival->offload, arrival->data, arrival->length, at, frame)) != 0) {
            process(self, thread, arrival, tag_size, length);
            at += arrival->offload.gso_size;
        }
        return;
    }
    struct virtio_net_hdr offload = arrival->offload;
    if (offload.gso_type != VIRTIO_NET_HDR_GSO_NONE || (offload.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) != 0) {
        // The tag moves the bytes that the header for offloads refers to.
        offload.hdr_len += (uint16_t)tag_size;
        offload.csum_start += (uint16_t)tag_size;
    }
    thread->offload = &offload;
    memcpy(frame, arrival->data, arrival->length);
    process(self, thread, arrival, tag_size, arrival->length);
    thread->offload = NULL;
}

static unsigned receive_from_ring(struct frame_port *self, struct thread *thread) {
    unsigned count = 0;
    while (count < MAX_FRAMES) {
        uint8_t *slot = self->ring + (size_t)self->next * self->slot_size;
        struct tpacket2_hdr *header = (struct tpacket2_hdr *)(void *)slot;
        uint32_t status = __atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE);
        if ((status & TP_STATUS_USER) == 0)
            break;
        struct arrival arrival;
        if (read_slot(self, slot, status, &arrival) && thread->context.plane != NULL)
            process_arrival(self, thread, &arrival);
        __atomic_store_n(&header->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        self->next = (self->next + 1) % self->slots;
        count++;
    }
    if (count == 0) { // woken by an error, for example an interface that went down: reading it clears it
        int error;
        socklen_t size = sizeof error;
        getsockopt(self->socket, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    return count;
}

// Returns whether the other end of a socket is closed.
static bool hung_up(int socket) {
    struct pollfd state = {.fd = socket};
    return poll(&state, 1, 0) > 0 && (state.revents & POLLHUP) != 0;
}

static unsigned receive(struct port *port, struct thread *thread) {
    struct frame_port *self = (struct frame_port *)(void *)port;
    if (self->ring != NULL)
        return receive_from_ring(self, thread);
    unsigned count = 0;
    while (count < MAX_FRAMES) {
        ssize_t length = recv(self->socket, context_frame(&thread->context), MAX_FRAME, MSG_DONTWAIT);
        if (length < 0)
            break;
        if (length == 0 && hung_up(self->socket)) {
            epoll_ctl(thread->poll, EPOLL_CTL_DEL, self->socket, NULL);
            break;
        }
        if (thread->context.plane != NULL)
            pipeline_process(&thread->context, port->number, (size_t)length);
        count++;
    }
    return count;
}

// --- out -------------------------------------------------------------------------------------------------------------

static void send_now(struct port *port, const struct virtio_net_hdr *offload, const uint8_t *frame, size_t length) {
    const struct frame_port *self = (const struct frame_port *)(const void *)port;
    struct iovec pieces[2] = {{(void *)(uintptr_t)offload, self->offload_size}, {(void *)(uintptr_t)frame, length}};
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
    bool sent = sendmsg(self->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
    port_count(sent ? &port->sent : &port->dropped, 1);
}

static void flush_frames(struct port *port, struct thread *thread) {
    const struct frame_port *self = (const struct frame_port *)(const void *)port;
    struct outgoing *outgoing = self->outgoing[thread->index];
    if (outgoing == NULL)
        return;
    unsigned at = 0;
    while (at < outgoing->count) {
        int sent = sendmmsg(self->socket, outgoing->messages + at, outgoing->count - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent <= 0) { // the first of these frames cannot be sent
            port_count(&port->dropped, 1);
            at++;
        } else {
            port_count(&port->sent, (unsigned)sent);
            at += (unsigned)sent;
        }
    }
    outgoing->count = 0;
    outgoing->used = 0;
}

static void send_frame(struct port *port, struct thread *thread, const uint8_t *frame, size_t length) {
    static const struct virtio_net_hdr nothing;
    struct frame_port *self = (struct frame_port *)(void *)port;
    const struct virtio_net_hdr *offload =
        thread != NULL && thread->offload != NULL && thread->context.forwarded ? thread->offload : &nothing;
    size_t size = self->offload_size + length;
    struct outgoing *outgoing = NULL;
    if (thread != NULL && size <= OUT_BUFFER_SIZE) {
        if (self->outgoing[thread->index] == NULL)
            self->outgoing[thread->index] = calloc(1, sizeof *outgoing);
        outgoing = self->outgoing[thread->index];
    }
    if (outgoing == NULL) {
        send_now(port, offload, frame, length);
        return;
    }
    if (outgoing->count == OUT_FRAMES || outgoing->used + size > OUT_BUFFER_SIZE)
        flush_frames(port, thread);
    uint8_t *copy = outgoing->memory + outgoing->used;
    memcpy(copy, offload, self->offload_size);
    memcpy(copy + self->offload_size, frame, length);
    outgoing->pieces[outgoing->count] = (struct iovec){copy, size};
    outgoing->messages[outgoing->count].msg_hdr =
        (struct msghdr){.msg_iov = &outgoing->pieces[outgoing->count], .msg_iovlen = 1};
    outgoing->used += size;
    outgoing->count++;
}

// --- the port itself -------------------------------------------------------------------------------------------------

static void close_port(struct port *port) {
    struct frame_port *self = (struct frame_port *)(void *)port;
    if (self->ring != NULL)
        munmap(self->ring, (size_t)self->slots * self->slot_size);
    if (self->socket >= 0)
        close(self->socket);
    for (unsigned thread = 0; thread < MAX_THREADS; thread++)
        free(self->outgoing[thread]);
    free(self->large);
    free(self);
}

static const struct port_kind frame_port_kind = {
    .descriptor = descriptor, .receive = receive, .send = send_frame, .flush = flush_frames, .close = close_port};

static struct frame_port *create(unsigned number, unsigned thread, int socket) {
    struct frame_port *self = calloc(1, sizeof *self);
    if (self == NULL)
        return NULL;
    self->port.kind = &frame_port_kind;
    self->port.number = number;
    self->port.thread = thread;
    self->socket = socket;
    return self;
}

int socket_port_open(struct port **port, unsigned number, unsigned thread, int socket) {
    struct frame_port *self = create(number, thread, socket);
    if (self == NULL)
        return -ENOMEM;
    *port = &self->port;
    return 0;
}

static unsigned mtu_of(int socket, const char *interface) {
    struct ifreq request = {0};
    strncpy(request.ifr_name, interface, sizeof request.ifr_name - 1);
    return ioctl(socket, SIOCGIFMTU, &request) == 0 && request.ifr_mtu > 0 ? (unsigned)request.ifr_mtu : 1500;
}

// Returns 0 or a negative errno.
static int map_ring(struct frame_port *self, unsigned mtu) {
    int version = TPACKET_V2, on = 1;
    self->offload_size = sizeof(struct virtio_net_hdr);
    self->large = malloc(MAX_FRAME);
    if (self->large == NULL)
        return -ENOMEM;
    unsigned head = (unsigned)(sizeof(struct tpacket2_hdr) + sizeof(struct sockaddr_ll) + self->offload_size);
    unsigned needed = head + 3 * TPACKET_ALIGNMENT + ETHERNET_SIZE + mtu;
    self->slot_size = SMALLEST_SLOT;
    while (self->slot_size < needed)
        self->slot_size *= 2;
    self->slots = RING_SIZE / self->slot_size;
    struct tpacket_req request = {
        .tp_block_size = self->slot_size > 1U << 16 ? self->slot_size : 1U << 16,
        .tp_frame_size = self->slot_size,
        .tp_frame_nr = self->slots,
    };
    request.tp_block_nr = RING_SIZE / request.tp_block_size;
    if (setsockopt(self->socket, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0 ||
        setsockopt(self->socket, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) != 0 ||
        setsockopt(self->socket, SOL_PACKET, PACKET_COPY_THRESH, &on, sizeof on) != 0 ||
        setsockopt(self->socket, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) != 0)
        return -errno;
    void *ring = mmap(NULL, RING_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, self->socket, 0);
    if (ring == MAP_FAILED)
        return -errno;
    self->ring = ring;
    return 0;
}

static int set_up(struct frame_port *self, const char *interface) {
    unsigned index = if_nametoindex(interface);
    if (index == 0)
        return -errno;
    enlarge_buffers(self->socket);
    int on = 1;
    struct packet_mreq everything = {.mr_ifindex = (int)index, .mr_type = PACKET_MR_PROMISC};
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)index};
    if (setsockopt(self->socket, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) != 0 ||
        setsockopt(self->socket, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &everything, sizeof everything) != 0)
        return -errno;
    int error = map_ring(self, mtu_of(self->socket, interface));
    if (error == 0 && bind(self->socket, (struct sockaddr *)&address, sizeof address) != 0)
        error = -errno;
    return error;
}

int ethernet_port_open(struct port **port, unsigned number, unsigned thread, const char *interface) {
    // Protocol 0 until the socket is bound: no frames arrive from other interfaces, or before the options are set.
    int made = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0)
        return -errno;
    struct frame_port *self = create(number, thread, made);
    if (self == NULL) {
        close(made);
        return -ENOMEM;
    }
    int error = set_up(self, interface);
    if (error != 0) {
        close_port(&self->port);
        return error;
    }
    *port = &self->port;
    return 0;
}
