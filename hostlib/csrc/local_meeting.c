// SPDX-License-Identifier: Apache-2.0
// How ranks come to share a segment: rank 0 makes it, in memory without a name, and hands it to each who comes to a
// socket whose name only the job's ranks know. Neither is a file, so that nothing is left when ranks are killed.
#include "local_segment.h"

#include "local_futex.h"
#include "structures.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

enum { MEETING_BYTES = 64, LAYOUT = 3, RANKS_TEXT_BYTES = 128, MOST_NAMED = 8 };
static const double RETRY_S = 0.005, SLICE_S = 0.1;

static bool refused(p4reduce_error *error, const char *what) {
    error_tell(error, P4REDUCE_SYSTEM, "ranks of this host cannot share memory: %s: %s", what, strerror(errno));
    return false;
}

static socklen_t address_of(const char *meeting, struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    const size_t length = strlen(meeting);
    memcpy(address->sun_path + 1, meeting, length); // after the zero of an abstract name
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

// The ranks that are not among those `here`, in words.
static void name_absent(const struct segment *segment, const bool *here, char *text, size_t room) {
    unsigned count = 0;
    size_t used = 0;
    *text = '\0';
    for (uint32_t rank = 0; rank < segment->ranks; rank++)
        if (!here[rank] && count++ < MOST_NAMED)
            used += (size_t)snprintf(text + used, room - used, "%s%" PRIu32, used ? ", " : "", rank);
    if (count > MOST_NAMED)
        snprintf(text + used, room - used, " and %u more", count - MOST_NAMED);
}

static bool absent(const struct segment *segment, const bool *here, double timeout, p4reduce_error *error) {
    char ranks[RANKS_TEXT_BYTES];
    name_absent(segment, here, ranks, sizeof ranks);
    error_tell(error, P4REDUCE_TIMEOUT,
               "not all ranks of this host have come to share memory within %g s: rank %s has not", timeout, ranks);
    return false;
}

static bool same_user(int socket) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

static bool ready_to_read(int socket, double deadline) {
    struct pollfd one = {.fd = socket, .events = POLLIN};
    const double left = deadline - clock_now();
    return poll(&one, 1, left > 0 ? (int)(left * 1000) + 1 : 0) == 1;
}

static bool send_memory(int socket, int memory) {
    uint8_t byte = LAYOUT;
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
static int receive_memory(int socket) {
    uint8_t byte;
    struct iovec data = {&byte, 1};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 || byte != LAYOUT)
        return -1;
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    int memory = -1;
    if (header != NULL && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof memory))
        memcpy(&memory, CMSG_DATA(header), sizeof memory);
    return memory;
}

// Rank 0: gives the memory to all others.
static bool hand_out(const struct segment *segment, int listener, int memory, double timeout, p4reduce_error *error) {
    const double deadline = clock_now() + timeout;
    bool here[MAX_RANKS] = {[0] = true};
    for (uint32_t missing = segment->ranks - 1; missing > 0;) {
        if (!ready_to_read(listener, deadline))
            return absent(segment, here, timeout, error);
        const int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        uint32_t rank;
        if (socket < 0)
            continue;
        if (same_user(socket) && ready_to_read(socket, deadline) && read(socket, &rank, sizeof rank) == sizeof rank &&
            rank < segment->ranks && !here[rank] && send_memory(socket, memory)) {
            here[rank] = true;
            missing--;
        }
        close(socket);
    }
    return true;
}

static bool make(struct segment *segment, const struct sockaddr_un *address, socklen_t length, int *memory,
                 double timeout, p4reduce_error *error) {
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (listener < 0)
        return refused(error, "a socket");
    bool well = false;
    if (bind(listener, (const struct sockaddr *)address, length) != 0 || listen(listener, (int)segment->ranks) != 0)
        refused(error, "the socket where they meet");
    else if ((*memory = memfd_create("p4reduce", MFD_CLOEXEC)) < 0 || ftruncate(*memory, (off_t)segment->size) != 0)
        refused(error, "memory");
    else
        well = hand_out(segment, listener, *memory, timeout, error);
    close(listener);
    return well;
}

// The others: get the memory from rank 0.
static bool fetch(const struct segment *segment, const struct sockaddr_un *address, socklen_t length, int *memory,
                  double timeout, p4reduce_error *error) {
    const double deadline = clock_now() + timeout;
    while (*memory < 0 && clock_now() < deadline) {
        const int here = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (here < 0)
            return refused(error, "a socket");
        if (connect(here, (const struct sockaddr *)address, length) == 0 && same_user(here) &&
            send(here, &segment->rank, sizeof segment->rank, MSG_NOSIGNAL) == sizeof segment->rank &&
            ready_to_read(here, deadline))
            *memory = receive_memory(here);
        close(here);
        if (*memory < 0)
            nanosleep(&(struct timespec){.tv_nsec = (long)(RETRY_S * 1e9)}, NULL);
    }
    const bool none[MAX_RANKS] = {[0] = false};
    struct segment alone = *segment;
    alone.ranks = 1; // it is rank 0 that is awaited
    return *memory >= 0 || absent(&alone, none, timeout, error);
}

// Waits until all ranks have counted themselves in the word.
static bool meet(const struct segment *segment, _Atomic uint32_t *word, double deadline) {
    if (atomic_fetch_add(word, 1) + 1 == segment->ranks)
        futex_wake_all(word);
    for (uint32_t seen; (seen = atomic_load(word)) != segment->ranks;) {
        if (clock_now() >= deadline)
            return false;
        futex_wait(word, seen, SLICE_S);
    }
    return true;
}

static bool reads_all(const struct segment *segment) {
    for (uint32_t rank = 0; rank < segment->ranks; rank++) {
        const struct rank_record *other = segment_rank(segment, rank);
        uint64_t found = 0;
        if (segment_read(segment, rank, other->probed_at, &found, sizeof found) != 0 || found != other->probe)
            return false;
    }
    return true;
}

// Yama lets only ancestors read a process's memory, unless the process allows more.
static void allow_reading(void) {
    FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "r");
    if (file == NULL)
        return;
    if (fgetc(file) == '1')
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    fclose(file);
}

// Whether this rank can open files of the others, of which each has the segment's: `memory` here.
static bool maps_all(const struct segment *segment, int memory) {
    struct stat status;
    bool all = fstat(memory, &status) == 0;
    for (uint32_t rank = 0; all && rank < segment->ranks; rank++) {
        const struct rank_record *other = segment_rank(segment, rank);
        all = region_is_there(other->pid, other->file, status.st_ino);
    }
    return all;
}

// Finds out whether all ranks can read each other's memory and map each other's regions, and agrees on it.
static bool probe(struct segment *segment, int memory, bool copies, double deadline) {
    struct segment_head *head = segment_head(segment);
    struct rank_record *own = segment_rank(segment, segment->rank);
    const uint64_t number = (uint64_t)(clock_now() * 1e9) ^ (uint64_t)segment->rank << 56;
    uint64_t *place = malloc(sizeof *place);
    if (place == NULL)
        return false;
    *place = number;
    *own = (struct rank_record){.pid = getpid(), .probe = number, .probed_at = (uint64_t)(uintptr_t)place,
                                .file = memory};
    if (!copies)
        allow_reading();
    bool all = meet(segment, &head->attached, deadline);
    if (all) {
        atomic_store(&own->reads_all, !copies && reads_all(segment));
        atomic_store(&own->maps_all, maps_all(segment, memory));
        all = meet(segment, &head->probed, deadline);
    }
    free(place);
    bool readable = all;
    segment->mappable = all;
    for (uint32_t rank = 0; rank < segment->ranks; rank++) {
        readable &= atomic_load(&segment_rank(segment, rank)->reads_all);
        segment->mappable &= atomic_load(&segment_rank(segment, rank)->maps_all);
    }
    segment_can_read(segment, readable);
    return all;
}

static bool share(struct segment *segment, int memory, bool copies, double timeout, p4reduce_error *error) {
    void *base = mmap(NULL, segment->size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (base == MAP_FAILED)
        return refused(error, "memory");
    segment->base = base;
    if (probe(segment, memory, copies, clock_now() + timeout))
        return true;
    bool here[MAX_RANKS];
    for (uint32_t rank = 0; rank < segment->ranks; rank++)
        here[rank] = segment_rank(segment, rank)->pid != 0;
    return absent(segment, here, timeout, error);
}

bool segment_open(struct segment *segment, const p4reduce_membership *membership, const p4reduce_local_options *options,
                  p4reduce_error *error) {
    const char *meeting = options->meeting != NULL ? options->meeting : "";
    if (*meeting == '\0' || strlen(meeting) > MEETING_BYTES || !(options->timeout > 0)) {
        error_tell(error, P4REDUCE_INVALID,
                   "meeting has %zu characters and timeout is %g: accepted are 1 to %d, and more than 0 seconds",
                   strlen(meeting), options->timeout, MEETING_BYTES);
        return false;
    }
    segment_lay_out(segment, membership->rank, membership->world_size);
    struct sockaddr_un address;
    const socklen_t length = address_of(meeting, &address);
    int memory = -1;
    bool well = segment->rank == 0 ? make(segment, &address, length, &memory, options->timeout, error)
                                   : fetch(segment, &address, length, &memory, options->timeout, error);
    well = well && share(segment, memory, options->copies, options->timeout, error);
    if (memory >= 0)
        close(memory);
    if (!well)
        segment_close(segment);
    return well;
}
