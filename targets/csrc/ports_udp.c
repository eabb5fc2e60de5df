// SPDX-License-Identifier: Apache-2.0
// UDP ports. Datagrams are processed as if frames had been built around them; for those that add to a round, no frame
// is.
#include "udp.h"

#include <errno.h>
#include <linux/filter.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "thread.h"

#define BUFFER_SIZE (16 << 20)
#define MESSAGES 4               // that are received at once: each may be a chain of datagrams
#define MESSAGE_ROOM (66 * 1024) // of which neighbours do not share places in the cache
#define TURNS 16                 // of receiving, before another port's turn
#define SEND_TIMEOUT_MS 20
#define DONT_FRAGMENT 0x4000

struct receiver {
    struct mmsghdr messages[MESSAGES];
    struct iovec pieces[MESSAGES];
    struct sockaddr_in peers[MESSAGES];
    union {
        struct cmsghdr align;
        uint8_t room[CMSG_SPACE(sizeof(int))];
    } control[MESSAGES];
    uint8_t *memory;
};

struct receiver *receiver_create(void) {
    struct receiver *receiver = calloc(1, sizeof *receiver);
    if (receiver == NULL)
        return NULL;
    receiver->memory = malloc((size_t)MESSAGES * MESSAGE_ROOM);
    if (receiver->memory == NULL) {
        free(receiver);
        return NULL;
    }
    for (size_t at = 0; at < MESSAGES; at++) {
        receiver->pieces[at] = (struct iovec){receiver->memory + at * MESSAGE_ROOM, MESSAGE_ROOM};
        receiver->messages[at].msg_hdr = (struct msghdr){
            .msg_name = &receiver->peers[at],
            .msg_iov = &receiver->pieces[at],
            .msg_iovlen = 1,
            .msg_control = &receiver->control[at],
        };
    }
    return receiver;
}

void receiver_destroy(struct receiver *receiver) {
    if (receiver != NULL)
        free(receiver->memory);
    free(receiver);
}

void udp_write_headers(const struct udp_port *udp, uint8_t *frame, uint32_t ip, uint16_t port, size_t length) {
    uint8_t *ethernet = frame, *ipv4 = ethernet + ETHERNET_SIZE, *datagram = ipv4 + IPV4_SIZE;
    store48(ethernet + ETHERNET_DST, UINT64_C(0x0200) << 32 | udp->ip);
    store48(ethernet + ETHERNET_SRC, UINT64_C(0x0200) << 32 | ip);
    store16(ethernet + ETHERNET_TYPE, ETHERTYPE_IPV4);
    memset(ipv4, 0, IPV4_SIZE);
    ipv4[0] = 0x45;
    store16(ipv4 + IPV4_TOTAL_LENGTH, (uint32_t)(IPV4_SIZE + UDP_SIZE + length));
    store16(ipv4 + IPV4_FRAGMENT, DONT_FRAGMENT);
    ipv4[IPV4_TTL] = DEFAULT_TTL;
    ipv4[IPV4_PROTOCOL] = PROTOCOL_UDP;
    store32(ipv4 + IPV4_SRC, ip);
    store32(ipv4 + IPV4_DST, udp->ip);
    store16(ipv4 + IPV4_CHECKSUM, ipv4_checksum(ipv4));
    store16(datagram + UDP_SRC_PORT, port);
    store16(datagram + UDP_DST_PORT, AGGREGATION_PORT);
    store16(datagram + UDP_LENGTH, (uint32_t)(UDP_SIZE + length));
    store16(datagram + UDP_CHECKSUM, 0);
}

// --- in --------------------------------------------------------------------------------------------------------------

// Whoever sent the datagrams at hand.
struct sender {
    uint32_t ip;
    uint16_t udp_port;
    bool known;
    uint64_t identity; // worker, job and generation as they stand in the header
    struct contribution data;
    uint32_t pool_base;
    uint32_t pool_halves;
    struct delivery *delivery; // NULL: its packets take the long way
};

// Bytes 3 to 7 of the header.
static uint64_t identity_of(const uint8_t *header) {
    uint64_t word;
    memcpy(&word, header, sizeof word);
    return word >> 24;
}

static void recognise(struct thread *thread, const struct udp_port *udp, struct sender *sender, const uint8_t *header) {
    const struct table *jobs = &thread->context.plane->tables[TABLE_JOBS];
    unsigned job = load16(header + AGGREGATION_JOB);
    uint64_t first = jobs_key_first(sender->ip, sender->udp_port, (uint16_t)job);
    uint64_t second =
        jobs_key_second(udp->port.number, load16(header + AGGREGATION_GENERATION), header[AGGREGATION_WORKER]);
    bool hit;
    const struct action *entry = table_apply(jobs, first, second, &hit);
    sender->known = true;
    sender->identity = identity_of(header);
    sender->delivery = NULL;
    // What goes up to a parent takes the long way.
    if (!hit || table_find(&thread->context.plane->tables[TABLE_UPLINKS], &(struct key){{job, 0}}) != NULL)
        return;
    sender->data.worker_bit = (uint32_t)entry->arguments[0];
    sender->data.full_bitmap = (uint32_t)entry->arguments[1];
    sender->pool_base = (uint32_t)entry->arguments[2];
    sender->pool_halves = (uint32_t)entry->arguments[3];
    sender->delivery = results_delivery(thread, job, (unsigned)entry->arguments[4]);
}

static unsigned lanes_in(unsigned lanes) {
    static const uint8_t nibbles[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    return (unsigned)nibbles[lanes & 15] + nibbles[lanes >> 4];
}

// Takes a datagram that starts a round or adds to one, and can be answered with a batch. Returns false for any other.
static bool contribute(struct thread *thread, const struct udp_port *udp, struct sender *sender, const uint8_t *header,
                       size_t length) {
    const struct slots *slots = &thread->context.plane->slots;
    const struct layout *layout = &slots->layout;
    size_t bare = AGGREGATION_SIZE + keys_length(layout);
    if (length < bare || header[AGGREGATION_VERSION_OP] != (PROTOCOL_VERSION << 4 | OP_DATA))
        return false;
    unsigned active = header[AGGREGATION_ACTIVE], present = header[AGGREGATION_PRESENT];
    if (active > all_lanes(layout) || (present & ~active) != 0 ||
        length != bare + lanes_in(present) * lane_length(layout) ||
        lanes_in(active ^ present) * lane_length(layout) > layout->max_growth)
        return false;
    if (!sender->known || identity_of(header) != sender->identity)
        recognise(thread, udp, sender, header);
    uint32_t slot = load16(header + AGGREGATION_SLOT), seq = load32(header + AGGREGATION_SEQ);
    if (sender->delivery == NULL || slot >= sender->pool_halves || (slot & 1) != (seq & 1) ||
        sender->pool_base + slot >= layout->halves)
        return false;

    struct contribution *data = &sender->data;
    data->worker = header[AGGREGATION_WORKER];
    data->seq = seq;
    data->fingerprint = load32(header + AGGREGATION_FINGERPRINT);
    data->active = active;
    data->present = present;
    data->keys = header + AGGREGATION_SIZE;
    data->values = header + bare;
    struct half *half = slots_half(slots, sender->pool_base + slot);
    if (!thread->alone)
        half_lock(half);
    enum outcome outcome = half_judge(half, data);
    bool taken = outcome == OUTCOME_STARTED || outcome == OUTCOME_ADDED;
    if (taken) {
        struct count *outcomes = thread->context.counters->outcomes;
        count_packet(&outcomes[outcome], UDP_HEADERS_SIZE + length);
        if (half_contribute(slots, half, data, outcome)) {
            count_packet(&outcomes[OUTCOME_COMPLETED], UDP_HEADERS_SIZE + length);
            results_add(thread, sender->delivery, half, header);
        }
    }
    if (!thread->alone)
        half_unlock(half);
    return taken;
}

static void process(struct thread *thread, const struct udp_port *udp, const struct sender *sender, const uint8_t *data,
                    size_t length) {
    uint8_t *frame = context_frame(&thread->context);
    udp_write_headers(udp, frame, sender->ip, sender->udp_port, length);
    memcpy(frame + UDP_HEADERS_SIZE, data, length);
    thread_process(thread, udp->port.number, UDP_HEADERS_SIZE + length);
}

// Whether nothing happens to a datagram of ours on its way to the aggregator.
static bool goes_straight(struct thread *thread, const struct udp_port *udp) {
    const struct table *tables = thread->context.plane->tables;
    bool own;
    table_apply(&tables[TABLE_OWN_ADDRESSES], udp->ip, 0, &own);
    return own && table_apply(&tables[TABLE_LOSS_IN], udp->port.number, 0, NULL)->id != ACTION_LOSE &&
           udp->port.number != thread->context.plane->layout.cpu_port;
}

// The length of each datagram in the chain that was received, but the last.
static size_t segment_length(struct msghdr *message, size_t length) {
    for (struct cmsghdr *item = CMSG_FIRSTHDR(message); item != NULL; item = CMSG_NXTHDR(message, item)) {
        if (item->cmsg_level == SOL_UDP && item->cmsg_type == UDP_GRO) {
            int size;
            memcpy(&size, CMSG_DATA(item), sizeof size);
            return size > 0 ? (size_t)size : length;
        }
    }
    return length;
}

static unsigned take(struct thread *thread, const struct udp_port *udp, struct msghdr *message, size_t length,
                     bool straight) {
    const struct sockaddr_in *peer = message->msg_name;
    struct sender sender = {.ip = ntohl(peer->sin_addr.s_addr), .udp_port = ntohs(peer->sin_port)};
    const uint8_t *data = message->msg_iov->iov_base;
    size_t step = segment_length(message, length);
    unsigned count = 0;
    size_t at = 0;
    do { // an empty datagram is one, too
        size_t size = length - at < step ? length - at : step;
        if (thread->context.plane != NULL && !(straight && contribute(thread, udp, &sender, data + at, size)))
            process(thread, udp, &sender, data + at, size);
        at += size;
        count++;
    } while (at < length);
    return count;
}

static unsigned receive(struct port *port, struct thread *thread) {
    struct udp_port *udp = (struct udp_port *)(void *)port;
    struct receiver *receiver = thread->receiver;
    bool straight = thread->context.plane != NULL && goes_straight(thread, udp);
    unsigned total = 0;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        for (size_t at = 0; at < MESSAGES; at++) {
            receiver->messages[at].msg_hdr.msg_namelen = sizeof *receiver->peers;
            receiver->messages[at].msg_hdr.msg_controllen = sizeof *receiver->control;
        }
        int count = recvmmsg(udp->sockets[thread->index], receiver->messages, MESSAGES, MSG_DONTWAIT, NULL);
        for (int at = 0; at < count; at++)
            total += take(thread, udp, &receiver->messages[at].msg_hdr, receiver->messages[at].msg_len, straight);
        if (count < MESSAGES)
            break;
    }
    return total;
}

// --- out -------------------------------------------------------------------------------------------------------------

// Sends, and waits a while where the socket's buffer is full. Returns whether it was sent.
static bool send_message(int socket, const struct msghdr *message) {
    while (sendmsg(socket, message, MSG_DONTWAIT) < 0) {
        struct pollfd room = {.fd = socket, .events = POLLOUT};
        if (errno != EINTR && (errno != EAGAIN || poll(&room, 1, SEND_TIMEOUT_MS) <= 0))
            return false;
    }
    return true;
}

static void count_sent(struct port *port, unsigned count, bool sent) {
    port_count(sent ? &port->sent : &port->dropped, count);
}

static struct msghdr message_to(const struct destination *to, struct iovec *piece) {
    return (struct msghdr){
        .msg_name = (void *)(uintptr_t)&to->address,
        .msg_namelen = sizeof to->address,
        .msg_iov = piece,
        .msg_iovlen = 1,
    };
}

static struct iovec piece_of(const uint8_t *data, size_t size) {
    return (struct iovec){(void *)(uintptr_t)data, size};
}

static void send_one(const struct destination *to, int socket, const uint8_t *data, size_t size) {
    struct iovec piece = piece_of(data, size);
    struct msghdr message = message_to(to, &piece);
    count_sent(&to->port->port, 1, send_message(socket, &message));
}

static void send_one_by_one(const struct destination *to, int socket, const struct row *row) {
    for (unsigned at = 0; at < row->count; at++)
        send_one(to, socket, row->data + at * row->size, row->size);
}

void udp_send(struct thread *thread, const struct destination *to, const struct row *row) {
    struct udp_port *udp = to->port;
    int socket = udp->sockets[thread->index];
    uint64_t unsegmented = atomic_load_explicit(&udp->unsegmented, memory_order_relaxed);
    if (row->count == 1 || (unsegmented != 0 && row->size >= unsegmented)) {
        send_one_by_one(to, socket, row);
        return;
    }
    union {
        struct cmsghdr head;
        uint8_t room[CMSG_SPACE(sizeof(uint16_t))];
    } control = {.head = {.cmsg_level = SOL_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof(uint16_t))}};
    uint16_t size = (uint16_t)row->size;
    memcpy(CMSG_DATA(&control.head), &size, sizeof size);
    struct iovec piece = piece_of(row->data, row->count * row->size);
    struct msghdr message = message_to(to, &piece);
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    if (send_message(socket, &message)) {
        count_sent(&udp->port, row->count, true);
    } else if (errno == EINVAL || errno == EIO || errno == EMSGSIZE || errno == EOPNOTSUPP) {
        // The kernel, the interface or its MTU does not have it.
        atomic_store_explicit(&udp->unsegmented, row->size, memory_order_relaxed);
        send_one_by_one(to, socket, row);
    } else {
        count_sent(&udp->port, row->count, false);
    }
}

static void send_frame(struct port *port, struct thread *thread, const uint8_t *frame, size_t length) {
    const uint8_t *ipv4 = frame + ETHERNET_SIZE, *datagram = ipv4 + IPV4_SIZE;
    if (length < UDP_HEADERS_SIZE || load16(frame + ETHERNET_TYPE) != ETHERTYPE_IPV4 || ipv4[0] != 0x45 ||
        ipv4[IPV4_PROTOCOL] != PROTOCOL_UDP || (load16(ipv4 + IPV4_FRAGMENT) & 0x3FFF) != 0 ||
        load16(datagram + UDP_LENGTH) < UDP_SIZE ||
        load16(datagram + UDP_LENGTH) > length - ETHERNET_SIZE - IPV4_SIZE) {
        count_sent(port, 1, false);
        return;
    }
    size_t size = load16(datagram + UDP_LENGTH) - (size_t)UDP_SIZE;
    struct destination to = {.port = (struct udp_port *)(void *)port, .address.sin_family = AF_INET};
    memcpy(&to.address.sin_addr, ipv4 + IPV4_DST, sizeof to.address.sin_addr);
    memcpy(&to.address.sin_port, datagram + UDP_DST_PORT, sizeof to.address.sin_port);
    // A row cannot be made of empty datagrams.
    if (thread == NULL || size == 0)
        send_one(&to, to.port->sockets[thread != NULL ? thread->index : 0], datagram + UDP_SIZE, size);
    else
        rows_add(thread, &to, datagram + UDP_SIZE, size);
}

// --- the port itself -------------------------------------------------------------------------------------------------

static int descriptor(const struct port *port, unsigned thread) {
    return ((const struct udp_port *)(const void *)port)->sockets[thread];
}

static void close_port(struct port *port) {
    struct udp_port *udp = (struct udp_port *)(void *)port;
    for (unsigned thread = 0; thread < udp->threads; thread++)
        if (udp->sockets[thread] >= 0)
            close(udp->sockets[thread]);
    free(udp);
}

const struct port_kind udp_port_kind = {descriptor, receive, send_frame, NULL, close_port};

void enlarge_buffers(int socket) {
    static const int options[][2] = {{SO_RCVBUFFORCE, SO_RCVBUF}, {SO_SNDBUFFORCE, SO_SNDBUF}};
    int size = BUFFER_SIZE;
    for (size_t at = 0; at < sizeof options / sizeof *options; at++)
        if (setsockopt(socket, SOL_SOCKET, options[at][0], &size, sizeof size) != 0)
            setsockopt(socket, SOL_SOCKET, options[at][1], &size, sizeof size);
}

// Deals the datagrams to the sockets of one port by their slot, so that a slot stays in one thread's cache. A chain of
// datagrams goes where its first one belongs.
static int deal_by_slot(int socket, unsigned threads) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, AGGREGATION_SLOT),
        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 1),
        BPF_STMT(BPF_ALU | BPF_MUL | BPF_K, 40503), // Fibonacci hashing
        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 8),
        BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, threads),
        BPF_STMT(BPF_RET | BPF_A, 0),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return setsockopt(socket, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program);
}

static int open_socket(struct sockaddr_in *address, bool shared) {
    int made = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0)
        return -errno;
    int on = 1;
    socklen_t length = sizeof *address;
    enlarge_buffers(made);
    setsockopt(made, SOL_UDP, UDP_GRO, &on, sizeof on); // where the kernel lacks it, datagrams come one by one
    if ((shared && setsockopt(made, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0) ||
        bind(made, (struct sockaddr *)address, sizeof *address) != 0 ||
        getsockname(made, (struct sockaddr *)address, &length) != 0) {
        int error = errno;
        close(made);
        return -error;
    }
    return made;
}

int udp_port_open(struct port **port, unsigned number, uint32_t ip, uint16_t *udp_port, unsigned threads) {
    struct udp_port *udp = calloc(1, sizeof *udp);
    if (udp == NULL)
        return -ENOMEM;
    udp->port.kind = &udp_port_kind;
    udp->port.number = number;
    udp->port.thread = ALL_THREADS;
    udp->ip = ip;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(ip), .sin_port = htons(*udp_port)};
    udp->threads = threads;
    for (unsigned thread = 0; thread < threads; thread++)
        udp->sockets[thread] = -1;
    if (threads > 1) { // sockets that share an address do not notice whether others have it
        int probe = open_socket(&address, false);
        if (probe < 0) {
            close_port(&udp->port);
            return probe;
        }
        close(probe);
    }
    for (unsigned thread = 0; thread < threads; thread++) {
        int made = udp->sockets[thread] = open_socket(&address, threads > 1);
        if (made < 0) {
            close_port(&udp->port);
            return made;
        }
    }
    if (threads > 1 && deal_by_slot(udp->sockets[0], threads) != 0) {
        int error = errno;
        close_port(&udp->port);
        return -error;
    }
    *udp_port = ntohs(address.sin_port);
    *port = &udp->port;
    return 0;
}
