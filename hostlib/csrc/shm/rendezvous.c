// SPDX-License-Identifier: Apache-2.0
#include "shm/rendezvous.h"

#include "base/awaited.h"
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
#include <unistd.h>

enum { NAME_CHARACTERS = 64 };
static const double RETRY_S = 0.005; // between two attempts to connect to the first rank, which may not listen yet

bool rendezvous_refused(p4reduce_error *error, const char *what) {
    error_tell(error, P4REDUCE_SYSTEM,
               "ranks of this host cannot share memory: %s: %s; P4REDUCE_LOCAL=off makes them use the network", what,
               strerror(errno));
    return false;
}

socklen_t rendezvous_address(const char *name, uint32_t index, struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    const size_t length = strlen(name);
    memcpy(address->sun_path + 1, name, length); // after the zero of an abstract name
    address->sun_path[1 + length] = (char)index;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length + (index > 0));
}

// Fills `error` with the ranks that are not `here`. Returns false.
static bool absent(const struct rendezvous *rendezvous, const bool *here, p4reduce_error *error) {
    uint32_t awaited[AWAITED_WORDS] = {0};
    char ranks[AWAITED_TEXT_BYTES];
    for (uint32_t i = 0; i < rendezvous->count; i++)
        if (!here[i])
            awaited_add(awaited, rendezvous->ranks[i]);
    awaited_ranks(awaited, ranks);
    error_tell(error, P4REDUCE_TIMEOUT, "not all ranks of this host have set up shared memory within %g s: %s %s not",
               rendezvous->timeout, ranks, strchr(ranks, ',') != NULL ? "have" : "has");
    return false;
}

static bool first_is_absent(const struct rendezvous *rendezvous, p4reduce_error *error) {
    bool here[MAX_HOST_RANKS];
    memset(here, true, sizeof here);
    here[0] = false;
    return absent(rendezvous, here, error);
}

static bool same_user(int socket) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

static void retry_later(void) {
    nanosleep(&(struct timespec){.tv_nsec = (long)(RETRY_S * 1e9)}, NULL);
}

// How long to poll, in ms.
static int poll_timeout_ms(double deadline) {
    return (int)(fmax(0, fmin(deadline - clock_now(), 60)) * 1000) + 1;
}

static bool ready_to_read(int socket, double deadline) {
    struct pollfd one = {.fd = socket, .events = POLLIN};
    while (poll(&one, 1, poll_timeout_ms(deadline)) != 1)
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

// Sets `memory` to the descriptor, or to -1 if none came. Returns false if it came but this process may open no more
// files.
static bool receive_memory(int socket, uint8_t layout, int *memory) {
    uint8_t byte;
    struct iovec data = {&byte, 1};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    *memory = -1;
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1)
        return true;
    if (message.msg_flags & MSG_CTRUNC) {
        errno = EMFILE;
        return false;
    }
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header != NULL && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof *memory))
        memcpy(memory, CMSG_DATA(header), sizeof *memory);
    if (*memory >= 0 && byte != layout) {
        close(*memory);
        *memory = -1;
    }
    return true;
}

// The message of the first rank to all others: the ranks that have come, and for rendezvous_agree, their common flags.
struct verdict {
    bool here[MAX_HOST_RANKS];
    uint8_t flags;
};

void rendezvous_leave(const struct rendezvous *rendezvous) {
    int *connections = rendezvous->connections;
    for (uint32_t index = 0; index < rendezvous->count; index++) {
        if (connections[index] >= 0)
            close(connections[index]);
        connections[index] = -1;
    }
}

static void tell(const struct rendezvous *rendezvous, const struct verdict *verdict) {
    for (uint32_t index = 1; index < rendezvous->count; index++)
        if (rendezvous->connections[index] >= 0)
            send(rendezvous->connections[index], verdict, sizeof *verdict, MSG_NOSIGNAL);
}

// Returns the index of the rank that has connected, by the name of its socket; 0 if it is none.
static uint32_t index_of(const struct rendezvous *rendezvous, const struct sockaddr_un *address, socklen_t length) {
    struct sockaddr_un first;
    const socklen_t first_length = rendezvous_address(rendezvous->name, 0, &first);
    return length == first_length + 1 && memcmp(address, &first, first_length) == 0
               ? ((const uint8_t *)address)[first_length]
               : 0;
}

// Sends the memory to a rank that has connected, and keeps the connection. Closes the connection of any other process.
static void serve(const struct rendezvous *rendezvous, int socket, uint32_t index, int memory,
                  struct verdict *verdict) {
    if (index < rendezvous->count && !verdict->here[index] && same_user(socket) &&
        send_memory(socket, memory, rendezvous->layout)) {
        verdict->here[index] = true;
        rendezvous->connections[index] = socket;
    } else {
        close(socket);
    }
}

// By the first rank: serves connections until all ranks have come.
static bool serve_all(const struct rendezvous *rendezvous, int listener, int memory, struct verdict *verdict,
                      p4reduce_error *error) {
    const double deadline = clock_now() + rendezvous->timeout;
    while (memchr(verdict->here, false, rendezvous->count) != NULL) {
        if (clock_now() >= deadline || !ready_to_read(listener, deadline))
            return absent(rendezvous, verdict->here, error);
        struct sockaddr_un address;
        socklen_t length = sizeof address;
        const int socket = accept4(listener, (struct sockaddr *)&address, &length, SOCK_CLOEXEC);
        if (socket >= 0)
            serve(rendezvous, socket, index_of(rendezvous, &address, length), memory, verdict);
        else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            return rendezvous_refused(error, "a connection");
    }
    return true;
}

// By the first rank: creates the memory, and sends it to all others. If some are absent, it tells the others.
static bool make(const struct rendezvous *rendezvous, int *memory, p4reduce_error *error) {
    struct sockaddr_un address;
    const socklen_t length = rendezvous_address(rendezvous->name, 0, &address);
    struct verdict verdict = {.here = {[0] = true}};
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (listener < 0)
        return rendezvous_refused(error, "a socket");
    bool well = false;
    if (bind(listener, (const struct sockaddr *)&address, length) != 0 || listen(listener, (int)rendezvous->count) != 0)
        rendezvous_refused(error, "the socket where they meet");
    else if ((*memory = memfd_create("p4reduce", MFD_CLOEXEC)) < 0 || ftruncate(*memory, (off_t)rendezvous->bytes) != 0)
        rendezvous_refused(error, "memory");
    else
        well = serve_all(rendezvous, listener, *memory, &verdict, error);
    close(listener);
    if (!well)
        tell(rendezvous, &verdict);
    return well;
}

// Connects as soon as the first rank listens. The socket keeps its name between attempts: if this process forked
// meanwhile, the child would keep the name, too, and no new socket could get it.
static bool connects(int socket, const struct sockaddr_un *address, socklen_t length, double deadline) {
    while (connect(socket, (const struct sockaddr *)address, length) != 0) {
        if (errno != ECONNREFUSED || clock_now() >= deadline)
            return false;
        retry_later();
    }
    return true;
}

// By the other ranks: gets the memory from the first.
static bool fetch(const struct rendezvous *rendezvous, int *memory, p4reduce_error *error) {
    const double deadline = clock_now() + rendezvous->timeout;
    struct sockaddr_un address, own;
    const socklen_t length = rendezvous_address(rendezvous->name, 0, &address);
    const socklen_t own_length = rendezvous_address(rendezvous->name, rendezvous->index, &own);
    while (clock_now() < deadline) {
        const int here = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (here < 0)
            return rendezvous_refused(error, "a socket");
        rendezvous->connections[0] = here;
        if (bind(here, (const struct sockaddr *)&own, own_length) == 0 && connects(here, &address, length, deadline) &&
            same_user(here) && ready_to_read(here, deadline) && !receive_memory(here, rendezvous->layout, memory))
            return rendezvous_refused(error, "memory");
        if (*memory >= 0)
            return true;
        rendezvous_leave(rendezvous);
        retry_later();
    }
    return first_is_absent(rendezvous, error);
}

int rendezvous_join(const struct rendezvous *rendezvous, p4reduce_error *error) {
    const char *name = rendezvous->name != NULL ? rendezvous->name : "";
    for (uint32_t index = 0; index < rendezvous->count; index++)
        rendezvous->connections[index] = -1;
    if (*name == '\0' || strlen(name) > NAME_CHARACTERS || !(rendezvous->timeout > 0)) {
        error_tell(error, P4REDUCE_INVALID,
                   "rendezvous has %zu characters and timeout is %g: accepted are 1 to %d, and more than 0 seconds",
                   strlen(name), rendezvous->timeout, NAME_CHARACTERS);
        return -1;
    }
    int memory = -1;
    if (rendezvous->index == 0 ? make(rendezvous, &memory, error) : fetch(rendezvous, &memory, error))
        return memory;
    if (memory >= 0)
        close(memory);
    rendezvous_leave(rendezvous);
    return -1;
}

// Agreeing.

// By the first rank: collects the flags of all ranks.
static void collect(const struct rendezvous *rendezvous, double deadline, struct verdict *verdict) {
    verdict->here[0] = true;
    for (uint32_t index = 1; index < rendezvous->count; index++) {
        const int socket = rendezvous->connections[index];
        uint8_t flags;
        if (ready_to_read(socket, deadline) && recv(socket, &flags, 1, 0) == 1) {
            verdict->here[index] = true;
            verdict->flags &= flags;
        }
    }
}

bool rendezvous_agree(const struct rendezvous *rendezvous, uint8_t *flags, p4reduce_error *error) {
    const double deadline = clock_now() + rendezvous->timeout;
    const int first = rendezvous->connections[0];
    struct verdict verdict = {.flags = *flags};
    if (rendezvous->index == 0) {
        collect(rendezvous, deadline, &verdict);
        tell(rendezvous, &verdict);
    } else {
        send(first, flags, 1, MSG_NOSIGNAL);
        if (!ready_to_read(first, deadline)) {
            error_tell(error, P4REDUCE_TIMEOUT,
                       "not all ranks of this host have set up shared memory within %g s: rank %" PRIu16
                       " has, and waits for others",
                       rendezvous->timeout, rendezvous->ranks[0]);
            return false;
        }
        ssize_t got = recv(first, &verdict, sizeof verdict, 0);
        if (got < 0 &&
            errno == ECONNRESET) // the first rank has closed it without reading the flags; its message is next
            got = recv(first, &verdict, sizeof verdict, 0);
        if (got != sizeof verdict)
            return first_is_absent(rendezvous, error);
    }
    *flags = verdict.flags;
    return memchr(verdict.here, false, rendezvous->count) == NULL || absent(rendezvous, verdict.here, error);
}
