// SPDX-License-Identifier: Apache-2.0
// A substitute for the switch of a job of one worker: a UDP socket that answers like it.
#ifndef P4REDUCE_TESTS_SWITCH_H
#define P4REDUCE_TESTS_SWITCH_H

#include "require.h"

#include <arpa/inet.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum { LARGEST_PACKET = 4096 };

static atomic_bool stop;

// Sends each packet back as its RESULT: with one worker, the sums are the values that it sent.
static void *answer(void *context) {
    const int socket = *(int *)context;
    uint8_t packet[LARGEST_PACKET];
    struct sockaddr_storage from;
    while (!stop) {
        socklen_t size = sizeof from;
        const ssize_t length = recvfrom(socket, packet, sizeof packet, 0, (struct sockaddr *)&from, &size);
        if (length <= 0)
            continue;
        packet[0] = 0x12; // RESULT
        sendto(socket, packet, (size_t)length, 0, (struct sockaddr *)&from, size);
    }
    return NULL;
}

// Returns a socket at the loopback address of a family; -1 if that is IPv6, and this machine has none.
static int bound(int family) {
    const int switch_socket = socket(family, SOCK_DGRAM, 0);
    const struct sockaddr_in ipv4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct sockaddr_in6 ipv6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const struct sockaddr *address = family == AF_INET ? (const struct sockaddr *)&ipv4 : (const void *)&ipv6;
    if (bind(switch_socket, address, family == AF_INET ? sizeof ipv4 : sizeof ipv6) == 0)
        return switch_socket;
    require(family == AF_INET6, "bind");
    return -1;
}

#endif
