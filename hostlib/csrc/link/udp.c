// SPDX-License-Identifier: Apache-2.0
// The link over a connected UDP socket. Packets of equal length go to the kernel as one super-packet (GSO), and come
// from it as one (GRO). If the kernel or a driver refuses, packets go one by one from then on.
#include "base/min.h"
#include "base/structures.h"
#include "link/link.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#ifndef SOL_UDP
#define SOL_UDP 17
#endif
#ifndef UDP_NO_CHECK6_RX
#define UDP_NO_CHECK6_RX 102
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

enum {
    LARGEST_DATAGRAM = 65535,
    LARGEST_PAYLOAD = LARGEST_DATAGRAM - 20 - 8,
    MOST_SEGMENTS = 64, // in a super-packet, in any kernel that has them
    BATCH = 16,         // datagrams that are received in one call, or sent in one call without super-packets
    SEND_ATTEMPTS = 64, // ICMP may end attempts, too; all of these: the kernel itself refuses
};

union control {
    struct cmsghdr header;
    char room[2 * CMSG_SPACE(sizeof(int))]; // the length of segments, and the TOS or traffic class
};

struct udp {
    struct link link;
    bool gso, gro;
    unsigned batch; // datagrams to receive at once: only one if super-packets come, so that it stays in the cache
    struct mmsghdr messages[BATCH];
    struct iovec iovecs[BATCH];
    union control controls[BATCH];
    uint8_t datagrams[BATCH][LARGEST_DATAGRAM + 1];
};

// Reads the length of each packet in a super-packet, which stays as it is for any other datagram, and whether the
// packets are marked. The kernel makes a super-packet only of packets with the same TOS.
static void read_control(struct msghdr *message, size_t *segment, bool *marked) {
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL; header = CMSG_NXTHDR(message, header))
        if (header->cmsg_level == SOL_UDP && header->cmsg_type == UDP_GRO) {
            int size;
            memcpy(&size, CMSG_DATA(header), sizeof size);
            if (size > 0)
                *segment = (size_t)size;
        } else if (header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_TOS) {
            *marked = (*CMSG_DATA(header) & ECN_MASK) == ECN_CE;
        } else if (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_TCLASS) {
            int traffic_class;
            memcpy(&traffic_class, CMSG_DATA(header), sizeof traffic_class);
            *marked = (traffic_class & ECN_MASK) == ECN_CE;
        }
}

static unsigned take_datagram(const struct link *link, p4reduce_worker *worker, struct msghdr *message, size_t length,
                              double now) {
    uint8_t *bytes = message->msg_iov->iov_base;
    size_t segment = length;
    bool marked = false;
    unsigned packets = 0;
    read_control(message, &segment, &marked);
    do {
        const size_t some = (size_t)min_of(length, segment);
        if (link->aggregators <= 1) // otherwise the slot is the aggregator's
            worker_expect(worker, bytes + some, length - some);
        link_hand_over(link, worker, bytes, some, marked, now);
        bytes += some;
        length -= some;
        packets++;
    } while (length > 0);
    return packets;
}

static unsigned udp_receive(struct link *link, p4reduce_worker *worker, double now) {
    struct udp *udp = (struct udp *)link;
    for (unsigned i = 0; i < udp->batch; i++)
        udp->messages[i].msg_hdr = (struct msghdr){
            .msg_iov = &udp->iovecs[i],
            .msg_iovlen = 1,
            .msg_control = &udp->controls[i],
            .msg_controllen = sizeof udp->controls[i],
        };
    int datagrams = recvmmsg(link->socket, udp->messages, udp->batch, MSG_DONTWAIT, NULL);
    if (datagrams <= 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            link->trouble = errno; // ICMP about an earlier datagram: reading the error has cleared it
        return 0;
    }
    link->trouble = 0;
    unsigned packets = 0;
    for (int i = 0; i < datagrams; i++)
        packets += take_datagram(link, worker, &udp->messages[i].msg_hdr, udp->messages[i].msg_len, now);
    udp->batch = packets > (unsigned)datagrams ? 1 : BATCH;
    return packets;
}

// Returns how many of the payloads fit into one super-packet: all of equal length, except that the last may be shorter.
static uint32_t group_of(const struct iovec *payloads, uint32_t count) {
    const size_t segment = payloads[0].iov_len;
    size_t total = 0;
    uint32_t group = 0;
    while (group < count && group < MOST_SEGMENTS && payloads[group].iov_len <= segment &&
           total + payloads[group].iov_len <= LARGEST_PAYLOAD) {
        total += payloads[group].iov_len;
        if (payloads[group++].iov_len < segment)
            break;
    }
    return group;
}

// Returns whether to send again after so many attempts. These errors may be ICMP about an earlier datagram, which anybody
// can forge: reading the error has cleared it.
static bool try_again(ssize_t sent, unsigned attempts) {
    if (sent >= 0 || attempts == SEND_ATTEMPTS)
        return false;
    switch (errno) {
    case ECONNREFUSED:
    case EMSGSIZE:
    case EACCES:
    case EPROTO:
    case ENOPROTOOPT:
    case EHOSTUNREACH:
        return true;
    }
    return false;
}

static ssize_t send_group(const struct udp *udp, const struct iovec *payloads, uint32_t group) {
    union control control = {0};
    struct msghdr message = {.msg_iov = (struct iovec *)payloads, .msg_iovlen = group};
    if (group > 1) {
        const uint16_t segment = (uint16_t)payloads[0].iov_len;
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(sizeof segment);
        control.header.cmsg_level = SOL_UDP;
        control.header.cmsg_type = UDP_SEGMENT;
        control.header.cmsg_len = CMSG_LEN(sizeof segment);
        memcpy(CMSG_DATA(&control.header), &segment, sizeof segment);
    }
    ssize_t sent;
    unsigned attempts = 0;
    do
        sent = sendmsg(udp->link.socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (try_again(sent, ++attempts));
    return sent;
}

static int send_singly(const struct udp *udp, const struct iovec *payloads, uint32_t count) {
    struct mmsghdr messages[BATCH];
    count = (uint32_t)min_of(count, BATCH);
    for (uint32_t i = 0; i < count; i++)
        messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = (struct iovec *)&payloads[i], .msg_iovlen = 1}};
    int sent;
    unsigned attempts = 0;
    do
        sent = sendmmsg(udp->link.socket, messages, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (try_again(sent, ++attempts));
    return sent;
}

static uint32_t udp_send(struct link *link, const struct iovec *payloads, uint32_t count, bool *grouped) {
    struct udp *udp = (struct udp *)link;
    uint32_t done = 0;
    link->full = false;
    while (done < count) {
        const bool gso = udp->gso && !link->singly;
        const uint32_t group = gso ? group_of(payloads + done, count - done) : 1;
        ssize_t result;
        if (gso) {
            result = send_group(udp, payloads + done, group) < 0 ? -1 : (ssize_t)group;
            if (result < 0 && group > 1 && (errno == EIO || errno == EINVAL)) {
                udp->gso = false; // this path cannot: nothing was sent, and packets go singly from now on
                continue;
            }
        } else {
            result = send_singly(udp, payloads + done, count - done);
        }
        if (result < 0 && link_refused(link, errno))
            break;
        const uint32_t passed = result < 0 ? group : (uint32_t)result;
        for (uint32_t i = 0; i < passed; i++)
            grouped[done + i] = group > 1;
        done += passed;
    }
    return done;
}

static void udp_describe(const struct link *link, char *text, size_t room) {
    const struct udp *udp = (const struct udp *)link;
    snprintf(text, room, "UDP%s%s", udp->gso && !link->singly ? ", GSO" : "", udp->gro ? ", GRO" : "");
}

static void udp_free(struct link *link) {
    free(link);
}

// Sets ECT(0) in a field of the IP header, and asks for the field of packets that arrive. Otherwise marks would not be
// seen. The caller may have set a DSCP.
static void set_ecn(int socket, int level, int field, int receive_field) {
    int value = 0;
    const int on = 1;
    socklen_t size = sizeof value;
    (void)getsockopt(socket, level, field, &value, &size);
    value = (value & ~ECN_MASK) | ECN_ECT_0;
    if (setsockopt(socket, level, receive_field, &on, sizeof on) == 0)
        (void)setsockopt(socket, level, field, &value, sizeof value);
}

struct link *udp_open(int socket, p4reduce_error *error) {
    struct udp *udp = calloc(1, sizeof *udp);
    if (udp == NULL) {
        error_tell(error, P4REDUCE_NO_MEMORY, "no memory for a UDP link");
        return NULL;
    }
    udp->link = (struct link){
        .socket = socket, .receive = udp_receive, .send = udp_send, .describe = udp_describe, .free = udp_free};
    udp->batch = BATCH;
    for (unsigned i = 0; i < BATCH; i++)
        udp->iovecs[i] = (struct iovec){udp->datagrams[i], sizeof udp->datagrams[i]};
    const int on = 1, off = 0;
    set_ecn(socket, IPPROTO_IP, IP_TOS, IP_RECVTOS);
    set_ecn(socket, IPPROTO_IPV6, IPV6_TCLASS, IPV6_RECVTCLASS); // has no effect on a socket of IPv4
    // Over IPv6, switches send datagrams without a checksum (RFC 6935), which the kernel drops unless asked. Ours have
    // one: the kernel makes no super-packets without.
    (void)setsockopt(socket, SOL_UDP, UDP_NO_CHECK6_RX, &on, sizeof on);
    const char *wanted = getenv("P4REDUCE_OFFLOAD"); // "none" turns GSO and GRO off, for measurements
    if (wanted == NULL || strcmp(wanted, "none") != 0) {
        udp->gro = setsockopt(socket, SOL_UDP, UDP_GRO, &on, sizeof on) == 0;
        udp->gso = setsockopt(socket, SOL_UDP, UDP_SEGMENT, &off, sizeof off) == 0;
    }
    return &udp->link;
}
