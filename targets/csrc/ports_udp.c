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

static void send_frame(struct port *port, struct thread *thread, const uint8_t *frame, size_t length) {
    const uint8_t *ipv4 = frame + ETHERNET_SIZE, *datagram = ipv4 + IPV4_SIZE;
    if (length < UDP_HEADERS_SIZE || load_16(frame + ETHERNET_TYPE) != ETHERTYPE_IPV4 || ipv4[IPV4_VERSION] != 0x45 ||
        ipv4[IPV4_PROTOCOL] != PROTOCOL_UDP || (load_16(ipv4 + IPV4_FLAGS) & 0x3FFF) != 0 ||
        load_16(datagram + UDP_LENGTH) < UDP_SIZE ||
        load_16(datagram + UDP_LENGTH) > length - ETHERNET_SIZE - IPV4_SIZE) {
        port_count(&port->dropped, 1);
        return;
    }
    size_t size = load_16(datagram + UDP_LENGTH) - (size_t)UDP_SIZE;
    unsigned ecn = ipv4[IPV4_TOS] & ECN_MASK;
    struct destination to = {.port = (struct udp_port *)(void *)port, .address.sin_family = AF_INET};
    memcpy(&to.address.sin_addr, ipv4 + IPV4_DST, sizeof to.address.sin_addr);
    memcpy(&to.address.sin_port, datagram + UDP_DST_PORT, sizeof to.address.sin_port);
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
    if (threads > 1) { // sockets with SO_REUSEPORT would share the address with another switch
        int probe = udp_socket_open(&address, false);
        if (probe < 0) {
            close_port(&udp->port);
            return probe;
        }
        close(probe);
    }
    for (unsigned thread = 0; thread < threads; thread++) {
        int made = udp->sockets[thread] = udp_socket_open(&address, threads > 1);
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
    *udp_port = ntohs(address.sin_port);
    *port = &udp->port;
    return 0;
}
