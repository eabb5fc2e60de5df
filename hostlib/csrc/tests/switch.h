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
    struct sockaddr_in from;
    socklen_t size = sizeof from;
    while (!stop) {
        const ssize_t length = recvfrom(socket, packet, sizeof packet, 0, (struct sockaddr *)&from, &size);
        if (length <= 0)
            continue;
        packet[0] = 0x12; // RESULT
        sendto(socket, packet, (size_t)length, 0, (struct sockaddr *)&from, size);
    }
    return NULL;
}

static int bound(void) {
    const int switch_socket = socket(AF_INET, SOCK_DGRAM, 0);
    const struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    require(bind(switch_socket, (const struct sockaddr *)&address, sizeof address) == 0, "bind");
    return switch_socket;
}

#endif
