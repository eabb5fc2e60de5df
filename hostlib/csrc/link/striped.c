// SPDX-License-Identifier: Apache-2.0
// One link to several aggregators that share a job's slots: slot s lives at aggregator s mod A, as its slot s div A.
// Spares follow these: they have slots only when those of a lost aggregator are redirected to them. In packets to and
// from an aggregator the slot field is the aggregator's; the worker sees the job's. So it is with the job's number and
// generation, if they differ among aggregators.
// hostlib/p4reduce/transport/striped.py is the same in Python.
#include "base/structures.h"
#include "link/link.h"

#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

struct part {
    struct link *link;
    struct part *via; // the part whose socket carries the packets: this one, unless its switch is lost
    char address[INET6_ADDRSTRLEN + sizeof "[]:65535"];
    double heard_at;
    bool unanswered;
};

struct striped {
    struct link link; // its socket is an epoll descriptor of all parts
    struct part *full;
    uint32_t count; // of parts, with those of spares
    uint32_t own;   // number << 16 | generation of the worker's job
    struct part parts[];
};

static bool watch(const struct striped *striped, int operation, const struct part *part, uint32_t events) {
    struct epoll_event event = {.events = events};
    return epoll_ctl(striped->link.socket, operation, part->link->socket, &event) == 0;
}

static unsigned striped_receive(struct link *link, p4reduce_worker *worker, double now) {
    struct striped *striped = (struct striped *)link;
    unsigned packets = 0;
    for (uint32_t i = 0; i < striped->count; i++) {
        struct part *part = &striped->parts[i];
        const unsigned some = part->link->receive(part->link, worker, now);
        if (some == 0)
            continue;
        part->unanswered = false;
        part->heard_at = now;
        packets += some;
    }
    return packets;
}

static uint32_t slot_of(const struct iovec *payload) {
    return (uint32_t)load_16((uint8_t *)payload->iov_base + AGGREGATION_SLOT) >> 1;
}

static void set_slot(const struct iovec *payload, uint32_t slot) {
    uint8_t *field = (uint8_t *)payload->iov_base + AGGREGATION_SLOT;
    store_16(field, (uint16_t)(slot << 1 | (load_16(field) & 1)));
}

// Sends payloads that all go to one aggregator. Their fields are restored, as they may have to be sent again.
static uint32_t send_to(struct striped *striped, uint32_t index, const struct iovec *payloads, uint32_t count,
                        bool *grouped) {
    const uint32_t aggregators = striped->link.aggregators;
    const struct link *masks = striped->parts[index].link;
    struct part *part = striped->parts[index].via;
    for (uint32_t i = 0; i < count; i++) {
        set_slot(&payloads[i], slot_of(&payloads[i]) / aggregators);
        link_mask_job(masks, payloads[i].iov_base);
    }
    part->link->singly = striped->link.singly;
    const uint32_t sent = part->link->send(part->link, payloads, count, grouped);
    for (uint32_t i = 0; i < count; i++) {
        set_slot(&payloads[i], slot_of(&payloads[i]) * aggregators + index);
        link_mask_job(masks, payloads[i].iov_base);
    }
    part->unanswered |= sent > 0;
    striped->link.fatal |= part->link->fatal;
    if (part->link->full) {
        // An epoll descriptor never becomes writable. With EPOLLOUT set, it becomes readable when that socket becomes
        // writable.
        striped->link.full = true;
        striped->full = part;
        watch(striped, EPOLL_CTL_MOD, part, EPOLLIN | EPOLLOUT);
    }
    return sent;
}

static uint32_t striped_send(struct link *link, const struct iovec *payloads, uint32_t count, bool *grouped) {
    struct striped *striped = (struct striped *)link;
    uint32_t done = 0;
    link->full = false;
    if (striped->full != NULL)
        watch(striped, EPOLL_CTL_MOD, striped->full, EPOLLIN);
    striped->full = NULL;
    while (done < count && !link->full) {
        const uint32_t index = slot_of(&payloads[done]) % link->aggregators;
        uint32_t run = 1;
        while (done + run < count && slot_of(&payloads[done + run]) % link->aggregators == index)
            run++;
        done += send_to(striped, index, payloads + done, run, grouped + done);
    }
    return done;
}

// Returns the aggregator that has left packets unanswered for longest; the one heard last if none has any.
static struct aggregator_state striped_longest_silent(const struct link *link) {
    const struct striped *striped = (const struct striped *)link;
    const struct part *found = &striped->parts[0];
    for (uint32_t i = 1; i < striped->count; i++) {
        const struct part *part = &striped->parts[i];
        const bool later = part->heard_at > found->heard_at;
        if (part->unanswered != found->unanswered ? part->unanswered : part->unanswered ? !later : later)
            found = part;
    }
    return (struct aggregator_state){found->address, found->heard_at, found->link->trouble};
}

static bool striped_redirect(struct link *link, uint32_t aggregator, uint32_t via, uint32_t job) {
    struct striped *striped = (struct striped *)link;
    if (aggregator >= link->aggregators || via >= striped->count || aggregator == via)
        return false;
    struct part *part = &striped->parts[aggregator], *other = &striped->parts[via];
    if (other->via != other)
        return false;
    for (struct link **at = &part->via->link->carried; *at != NULL; at = &(*at)->next_carried)
        if (*at == part->link) {
            *at = part->link->next_carried; // it has moved before
            break;
        }
    part->via = other;
    part->unanswered = false;
    memcpy(part->address, other->address, sizeof part->address);
    part->link->job = job;
    part->link->job_mask = job ^ striped->own;
    part->link->next_carried = other->link->carried;
    other->link->carried = part->link;
    return true;
}

static void striped_describe(const struct link *link, char *text, size_t room) {
    const struct striped *striped = (const struct striped *)link;
    char each[64];
    striped->parts[0].link->describe(striped->parts[0].link, each, sizeof each);
    snprintf(text, room, "%s, to %u aggregators", each, (unsigned)link->aggregators);
}

static void striped_free(struct link *link) {
    struct striped *striped = (struct striped *)link;
    for (uint32_t i = 0; i < striped->count; i++)
        if (striped->parts[i].link != NULL)
            striped->parts[i].link->free(striped->parts[i].link);
    if (link->socket >= 0)
        close(link->socket);
    free(striped);
}

// Writes the address to which a socket is connected: "10.0.0.254:31314" or "[fd00::fe]:31314". Returns false if it is
// connected to none, or to one of another protocol than IP.
static bool write_peer(int socket, char *text, size_t room) {
    union {
        struct sockaddr any;
        struct sockaddr_in ipv4;
        struct sockaddr_in6 ipv6;
    } peer;
    socklen_t size = sizeof peer;
    char ip[INET6_ADDRSTRLEN];
    if (getpeername(socket, &peer.any, &size) != 0 || (peer.any.sa_family != AF_INET && peer.any.sa_family != AF_INET6))
        return false;
    const bool ipv6 = peer.any.sa_family == AF_INET6;
    inet_ntop(peer.any.sa_family, ipv6 ? (void *)&peer.ipv6.sin6_addr : (void *)&peer.ipv4.sin_addr, ip, sizeof ip);
    const unsigned port = ntohs(ipv6 ? peer.ipv6.sin6_port : peer.ipv4.sin_port);
    snprintf(text, room, "%s%s%s:%u", ipv6 ? "[" : "", ip, ipv6 ? "]" : "", port);
    return true;
}

static bool open_part(struct striped *striped, uint32_t index, int socket, uint32_t job_mask, p4reduce_error *error) {
    struct part *part = &striped->parts[index];
    if (!write_peer(socket, part->address, sizeof part->address)) {
        error_tell(error, P4REDUCE_INVALID, "socket %d is not connected to an IPv4 or IPv6 address", socket);
        return false;
    }
    part->heard_at = -(double)INFINITY;
    part->link = udp_open(socket, error);
    if (part->link == NULL)
        return false;
    part->link->aggregators = striped->link.aggregators;
    part->link->aggregator = index;
    part->link->job_mask = job_mask;
    part->via = part;
    if (watch(striped, EPOLL_CTL_ADD, part, EPOLLIN))
        return true;
    error_tell(error, P4REDUCE_SYSTEM, "cannot wait for socket %d: errno %d", socket, errno);
    return false;
}

struct link *striped_open(const int *sockets, uint32_t count, uint32_t spares, const uint32_t *jobs, uint32_t own,
                          p4reduce_error *error) {
    struct striped *striped = calloc(1, sizeof *striped + count * sizeof *striped->parts);
    if (striped == NULL) {
        error_tell(error, P4REDUCE_NO_MEMORY, "no memory for a link to %u aggregators", (unsigned)count);
        return NULL;
    }
    striped->count = count;
    striped->link = (struct link){.aggregators = count - spares,
                                  .socket = epoll_create1(EPOLL_CLOEXEC),
                                  .receive = striped_receive,
                                  .send = striped_send,
                                  .longest_silent = striped_longest_silent,
                                  .redirect = striped_redirect,
                                  .describe = striped_describe,
                                  .free = striped_free};
    striped->own = own;
    bool well = striped->link.socket >= 0;
    if (!well)
        error_tell(error, P4REDUCE_SYSTEM, "no epoll descriptor: errno %d", errno);
    for (uint32_t i = 0; i < count && well; i++)
        well = open_part(striped, i, sockets[i], jobs != NULL ? jobs[i] ^ own : 0, error);
    if (well)
        return &striped->link;
    striped_free(&striped->link);
    return NULL;
}
