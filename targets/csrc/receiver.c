// SPDX-License-Identifier: Apache-2.0
#include "receiver.h"

#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "sockets.h"
#include "wire/constants.h"

#define MESSAGE_BUFFER_SIZE (66 * 1024) // no power of two: buffers at such a distance would share cache sets

struct receiver {
    struct mmsghdr messages[MESSAGES];
    struct iovec pieces[MESSAGES];
    union socket_address peers[MESSAGES];
    union {
        struct cmsghdr align;
        uint8_t room[2 * CMSG_SPACE(sizeof(int))];
    } control[MESSAGES];
    uint8_t *memory;
};

struct receiver *receiver_create(void) {
    struct receiver *receiver = calloc(1, sizeof *receiver);
    if (receiver == NULL)
        return NULL;
    receiver->memory = malloc((size_t)MESSAGES * MESSAGE_BUFFER_SIZE);
    if (receiver->memory == NULL) {
        free(receiver);
        return NULL;
    }
    for (size_t at = 0; at < MESSAGES; at++) {
        receiver->pieces[at] = (struct iovec){receiver->memory + at * MESSAGE_BUFFER_SIZE, MESSAGE_BUFFER_SIZE};
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

unsigned receiver_fill(struct receiver *receiver, int socket) {
    for (size_t at = 0; at < MESSAGES; at++) {
        receiver->messages[at].msg_hdr.msg_namelen = sizeof *receiver->peers;
        receiver->messages[at].msg_hdr.msg_controllen = sizeof *receiver->control;
    }
    int count = recvmmsg(socket, receiver->messages, MESSAGES, MSG_DONTWAIT, NULL);
    return count > 0 ? (unsigned)count : 0;
}

struct message receiver_message(struct receiver *receiver, unsigned at) {
    struct msghdr *header = &receiver->messages[at].msg_hdr;
    struct message message = {
        .ip = socket_address_ip(&receiver->peers[at]),
        .udp_port = socket_address_port(&receiver->peers[at]),
        .data = receiver->pieces[at].iov_base,
        .length = receiver->messages[at].msg_len,
        .segment_size = receiver->messages[at].msg_len,
    };
    for (struct cmsghdr *item = CMSG_FIRSTHDR(header); item != NULL; item = CMSG_NXTHDR(header, item)) {
        if (item->cmsg_level == SOL_UDP && item->cmsg_type == UDP_GRO) {
            int size;
            memcpy(&size, CMSG_DATA(item), sizeof size);
            if (size > 0)
                message.segment_size = (size_t)size;
        } else if (item->cmsg_level == IPPROTO_IP && item->cmsg_type == IP_TOS) {
            message.ecn = *CMSG_DATA(item) & ECN_MASK;
        } else if (item->cmsg_level == IPPROTO_IPV6 && item->cmsg_type == IPV6_TCLASS) {
            int traffic_class;
            memcpy(&traffic_class, CMSG_DATA(item), sizeof traffic_class);
            message.ecn = (unsigned)traffic_class & ECN_MASK;
        }
    }
    return message;
}
