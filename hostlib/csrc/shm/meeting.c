// SPDX-License-Identifier: Apache-2.0
#include "shm/meeting.h"

#include "base/clock.h"
#include "base/structures.h"
#include "wire/constants.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { NAME_CHARACTERS = 64, RANKS_TEXT_BYTES = 128, MOST_NAMED = 8 };
static const double RETRY_S = 0.005;

bool meeting_refused(p4reduce_error *error, const char *what) {
    error_tell(error, P4REDUCE_SYSTEM,
               "ranks of this host cannot share memory: %s: %s; P4REDUCE_LOCAL=off makes them use the network", what,
               strerror(errno));
    return false;
}

static socklen_t address_of(const struct meeting *meeting, struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    const size_t length = strlen(meeting->name);
    memcpy(address->sun_path + 1, meeting->name, length); // after the zero of an abstract name
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static uint32_t number_of(const struct meeting *meeting, uint32_t index) {
    return meeting->ranks != NULL ? meeting->ranks[index] : index;
}

// The ranks that are not among those `here`, in words.
static void name_absent(const struct meeting *meeting, const bool *here, char *text, size_t room) {
    unsigned count = 0;
    size_t used = 0;
    *text = '\0';
    for (uint32_t i = 0; i < meeting->count; i++)
        if (!here[i] && count++ < MOST_NAMED)
            used += (size_t)snprintf(text + used, room - used, "%s%" PRIu32, used ? ", " : "", number_of(meeting, i));
    if (count > MOST_NAMED)
        snprintf(text + used, room - used, " and %u more", count - MOST_NAMED);
}

bool meeting_absent(const struct meeting *meeting, const bool *here, p4reduce_error *error) {
    char ranks[RANKS_TEXT_BYTES];
    name_absent(meeting, here, ranks, sizeof ranks);
    error_tell(error, P4REDUCE_TIMEOUT,
               "not all ranks of this host have set up shared memory within %g s: rank %s has not",
               meeting->timeout, ranks);
    return false;
}

static bool same_user(int socket) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// How long to poll, in ms.
static int patience(double deadline) {
    return (int)(fmax(0, fmin(deadline - clock_now(), 60)) * 1000) + 1;
}

static bool ready_to_read(int socket, double deadline) {
    struct pollfd one = {.fd = socket, .events = POLLIN};
    while (poll(&one, 1, patience(deadline)) != 1)
        if (clock_now() >= deadline)
            return false;
    return true;
}

static bool send_memory(int socket, int memory, uint8_t layout) {
    uint8_t byte = layout;
    struct iovec data = {&byte, 1};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.room = {0}};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof memory);
    memcpy(CMSG_DATA(header), &memory, sizeof memory);
    return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

// -1 if none came.
static int receive_memory(int socket, uint8_t layout) {
    uint8_t byte;
    struct iovec data = {&byte, 1};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1)
        return -1;
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    int memory = -1;
    if (header != NULL && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof memory))
        memcpy(&memory, CMSG_DATA(header), sizeof memory);
    if (memory >= 0 && byte != layout) {
        close(memory);
        memory = -1;
    }
    return memory;
}

// What the first knows of who comes. `connections`: the listener, and those from which an index is yet to come.
struct arrivals {
    const struct meeting *meeting;
    int memory, *sockets;
    bool here[MAX_RANKS];
    uint32_t missing;
    struct pollfd connections[1 + MAX_RANKS];
    nfds_t count;
};

// Takes a connection's index, and gives it the memory. It stays where `sockets` are wanted.
static void serve(struct arrivals *arrivals, int socket) {
    const struct meeting *meeting = arrivals->meeting;
    uint32_t index;
    if (recv(socket, &index, sizeof index, MSG_DONTWAIT) == sizeof index && index < meeting->count &&
        !arrivals->here[index] && send_memory(socket, arrivals->memory, meeting->layout)) {
        arrivals->here[index] = true;
        arrivals->missing--;
        if (arrivals->sockets != NULL) {
            arrivals->sockets[index] = socket;
            return;
        }
    }
    close(socket);
}

// False where the kernel gives no more connections; then `errno` says why.
static bool take_connection(struct arrivals *arrivals) {
    const int socket = accept4(arrivals->connections[0].fd, NULL, NULL, SOCK_CLOEXEC);
    if (socket < 0)
        return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
    if (arrivals->count <= MAX_RANKS && same_user(socket))
        arrivals->connections[arrivals->count++] = (struct pollfd){.fd = socket, .events = POLLIN};
    else
        close(socket);
    return true;
}

// Serves whoever has something to say, so that one who is stopped keeps no other waiting.
static bool serve_all(struct arrivals *arrivals, double deadline, p4reduce_error *error) {
    struct pollfd *connections = arrivals->connections;
    while (arrivals->missing > 0) {
        if (clock_now() >= deadline)
            return meeting_absent(arrivals->meeting, arrivals->here, error);
        if (poll(connections, arrivals->count, patience(deadline)) <= 0)
            continue;
        for (nfds_t i = arrivals->count - 1; i > 0; i--)
            if (connections[i].revents != 0) {
                serve(arrivals, connections[i].fd);
                connections[i] = connections[--arrivals->count];
            }
        if (connections[0].revents != 0 && !take_connection(arrivals))
            return meeting_refused(error, "a connection");
    }
    return true;
}

// The first: gives the memory to all others. Their connections stay where `sockets` are wanted, and all who have come
// are told who has.
static bool hand_out(const struct meeting *meeting, int listener, int memory, int *sockets, p4reduce_error *error) {
    struct arrivals arrivals = {
        .meeting = meeting,
        .memory = memory,
        .sockets = sockets,
        .here = {[0] = true},
        .missing = meeting->count - 1,
        .connections = {{.fd = listener, .events = POLLIN}},
        .count = 1,
    };
    const bool well = serve_all(&arrivals, clock_now() + meeting->timeout, error);
    for (nfds_t i = 1; i < arrivals.count; i++)
        close(arrivals.connections[i].fd);
    for (uint32_t index = 1; sockets != NULL && index < meeting->count; index++)
        if (sockets[index] >= 0)
            send(sockets[index], arrivals.here, sizeof arrivals.here, MSG_NOSIGNAL);
    return well;
}

static bool make(const struct meeting *meeting, const struct sockaddr_un *address, socklen_t length, int *memory,
                 int *sockets, p4reduce_error *error) {
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (listener < 0)
        return meeting_refused(error, "a socket");
    bool well = false;
    if (bind(listener, (const struct sockaddr *)address, length) != 0 || listen(listener, (int)meeting->count) != 0)
        meeting_refused(error, "the socket where they meet");
    else if ((*memory = memfd_create("p4reduce", MFD_CLOEXEC)) < 0 || ftruncate(*memory, (off_t)meeting->bytes) != 0)
        meeting_refused(error, "memory");
    else
        well = hand_out(meeting, listener, *memory, sockets, error);
    close(listener);
    return well;
}

static bool first_is_absent(const struct meeting *meeting, p4reduce_error *error) {
    const bool none[1] = {false};
    struct meeting first = *meeting;
    first.count = 1;
    return meeting_absent(&first, none, error);
}

// Until the first says that all have come.
static bool await_others(const struct meeting *meeting, int first, double deadline, p4reduce_error *error) {
    bool here[MAX_RANKS];
    if (!ready_to_read(first, deadline)) {
        error_tell(error, P4REDUCE_TIMEOUT,
                   "not all ranks of this host have set up shared memory within %g s: rank %" PRIu32 " has, and waits "
                   "for others",
                   meeting->timeout, number_of(meeting, 0));
        return false;
    }
    if (read(first, here, sizeof here) != sizeof here)
        return first_is_absent(meeting, error);
    for (uint32_t index = 0; index < meeting->count; index++)
        if (!here[index])
            return meeting_absent(meeting, here, error);
    return true;
}

// The others: get the memory from the first.
static bool fetch(const struct meeting *meeting, const struct sockaddr_un *address, socklen_t length, int *memory,
                  int *sockets, p4reduce_error *error) {
    const double deadline = clock_now() + meeting->timeout;
    int here = -1;
    while (*memory < 0 && clock_now() < deadline) {
        here = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (here < 0)
            return meeting_refused(error, "a socket");
        if (connect(here, (const struct sockaddr *)address, length) == 0 && same_user(here) &&
            send(here, &meeting->index, sizeof meeting->index, MSG_NOSIGNAL) == sizeof meeting->index &&
            ready_to_read(here, deadline))
            *memory = receive_memory(here, meeting->layout);
        if (*memory < 0 || sockets == NULL)
            close(here);
        if (*memory < 0)
            nanosleep(&(struct timespec){.tv_nsec = (long)(RETRY_S * 1e9)}, NULL);
    }
    if (*memory < 0)
        return first_is_absent(meeting, error);
    if (sockets == NULL)
        return true;
    sockets[0] = here;
    return await_others(meeting, here, deadline, error);
}

int meeting_hold(const struct meeting *meeting, int *sockets, p4reduce_error *error) {
    const char *name = meeting->name != NULL ? meeting->name : "";
    for (uint32_t index = 0; sockets != NULL && index < meeting->count; index++)
        sockets[index] = -1;
    if (*name == '\0' || strlen(name) > NAME_CHARACTERS || !(meeting->timeout > 0)) {
        error_tell(error, P4REDUCE_INVALID,
                   "meeting has %zu characters and timeout is %g: accepted are 1 to %d, and more than 0 seconds",
                   strlen(name), meeting->timeout, NAME_CHARACTERS);
        return -1;
    }
    struct sockaddr_un address;
    const socklen_t length = address_of(meeting, &address);
    int memory = -1;
    if (meeting->index == 0 ? make(meeting, &address, length, &memory, sockets, error)
                            : fetch(meeting, &address, length, &memory, sockets, error))
        return memory;
    if (memory >= 0)
        close(memory);
    for (uint32_t index = 0; sockets != NULL && index < meeting->count; index++)
        if (sockets[index] >= 0) {
            close(sockets[index]);
            sockets[index] = -1;
        }
    return -1;
}
