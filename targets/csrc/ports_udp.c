// SPDX-License-Identifier: Apache-2.0
#include "ports_udp.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "datagrams.h"
#include "packet.h"
#include "sockets.h"

#define MAX_RECEIVES 16 // in a row, before another port is served

static unsigned receive(struct port *port, struct thread *thread) {
    struct udp_port *udp = (struct udp_port *)(void *)port;
    const struct plane *plane = thread->context.plane;
    bool fast_path = plane != NULL && fast_path_allowed(plane, udp);
    unsigned total = 0;
    for (unsigned receives = 0; receives < MAX_RECEIVES; receives++) {
        unsigned count = receiver_fill(thread->receiver, udp->sockets[thread->index]);
        for (unsigned at = 0; at < count; at++) {
            const struct message message = receiver_message(thread->receiver, at);
            total += process_datagrams(thread, udp, &message, fast_path);
        }
        if (count < MESSAGES)
            break;
    }
    return total;
}

// Fills a destination with the one in a frame's headers. Returns the UDP header, or NULL for a frame that is no whole
// datagram of UDP right after the IP header.
static const uint8_t *find_datagram(const uint8_t *frame, size_t length, struct destination *to, unsigned *ecn) {
    const uint8_t *ip = frame + ETHERNET_SIZE;
    if (length >= UDP_HEADERS_SIZE && load_16(frame + ETHERNET_TYPE) == ETHERTYPE_IPV4 && ip[IPV4_VERSION] == 0x45 &&
        ip[IPV4_PROTOCOL] == PROTOCOL_UDP && (load_16(ip + IPV4_FLAGS) & 0x3FFF) == 0) {
        to->ip = ip_of_ipv4(load_32(ip + IPV4_DST));
        *ecn = ip[IPV4_TOS] & ECN_MASK;
        return ip + IPV4_SIZE;
    }
    if (length >= UDP_IPV6_HEADERS_SIZE && load_16(frame + ETHERNET_TYPE) == ETHERTYPE_IPV6 &&
        ip[IPV6_VERSION] >> 4 == 6 && ip[IPV6_NEXT_HEADER] == PROTOCOL_UDP) {
        to->ip = ip_load(ip + IPV6_DST);
        *ecn = ipv6_ecn(ip);
        return ip + IPV6_SIZE;
    }
    return NULL;
}

static void send_frame(struct port *port, struct thread *thread, const uint8_t *frame, size_t length) {
    struct destination to = {.port = (struct udp_port *)(void *)port};
    unsigned ecn = 0;
    const uint8_t *datagram = find_datagram(frame, length, &to, &ecn);
    if (datagram == NULL || load_16(datagram + UDP_LENGTH) < UDP_SIZE ||
        load_16(datagram + UDP_LENGTH) > (size_t)(frame + length - datagram) ||
        ip_is_ipv4(to.ip) != ip_is_ipv4(to.port->ip)) {
        port_count(&port->dropped, 1);
        return;
    }
    size_t size = load_16(datagram + UDP_LENGTH) - (size_t)UDP_SIZE;
    to.udp_port = load_16(datagram + UDP_DST_PORT);
    // A batch cannot consist of empty datagrams.
    if (thread == NULL || size == 0)
        udp_send(&to, thread != NULL ? thread->index : 0, ecn, datagram + UDP_SIZE, size);
    else
        batches_add(&thread->batches, &to, ecn, datagram + UDP_SIZE, size);
}

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

const struct port_kind udp_port_kind = {
    .descriptor = descriptor, .receive = receive, .send = send_frame, .close = close_port, .udp = true};

int udp_port_open(struct port **port, unsigned number, struct ip ip, uint16_t *udp_port, unsigned threads) {
    struct udp_port *udp = calloc(1, sizeof *udp);
    if (udp == NULL)
        return -ENOMEM;
    udp->port.kind = &udp_port_kind;
    udp->port.number = number;
    udp->port.thread = ALL_THREADS;
    udp->ip = ip;
    udp->threads = threads;
    for (unsigned thread = 0; thread < threads; thread++)
        udp->sockets[thread] = -1;
    if (threads > 1) { // sockets with SO_REUSEPORT would share the address with another switch
        int probe = udp_socket_open(ip, udp_port, false);
        if (probe < 0) {
            close_port(&udp->port);
            return probe;
        }
        close(probe);
    }
    for (unsigned thread = 0; thread < threads; thread++) {
        int made = udp->sockets[thread] = udp_socket_open(ip, udp_port, threads > 1);
        if (made < 0) {
            close_port(&udp->port);
            return made;
        }
    }
    int error = threads > 1 ? steer_by_slot(udp->sockets[0], threads) : 0;
    if (error != 0) {
        close_port(&udp->port);
        return error;
    }
    *port = &udp->port;
    return 0;
}
