// SPDX-License-Identifier: Apache-2.0
// A load generator: synthetic workers that send DATA as fast as the switch answers, to measure the switch without the
// cost of real workers. It prints one line of JSON.
//
//   native_load [workers] [slots] [rounds] [threads] [active lanes] [4 or 6, for IPv4 or IPv6]
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "native.h"
#include "sockets.h"
#include "tables.h"
#include "wire/bytes.h"
#include "wire/headers.h"

#define LANES 4
#define BLOCK 64
#define HEAD (AGGREGATION_SIZE + KEY_SIZE * LANES)
#define LANE (VALUE_SIZE * BLOCK)
#define CHAIN 61
#define JOB 7
#define FIRST_SEQ 2
#define BUFFER (16 << 20)

struct options {
    unsigned workers, slots, rounds, threads, lanes;
    bool ipv6;
};

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

// --- a worker --------------------------------------------------------------------------------------------------------

struct worker {
    const struct options *options;
    int socket;
    uint8_t values[LANES * LANE];
    uint8_t (*heads)[HEAD]; // one for each slot
    unsigned *rounds;       // begun in each slot
    struct iovec pieces[2 * CHAIN];
    unsigned waiting;
};

static void send_chain(struct worker *worker) {
    if (worker->waiting == 0)
        return;
    union {
        struct cmsghdr head;
        uint8_t room[CMSG_SPACE(sizeof(uint16_t))];
    } control = {.head = {.cmsg_level = SOL_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof(uint16_t))}};
    uint16_t size = (uint16_t)(HEAD + worker->options->lanes * LANE);
    memcpy(CMSG_DATA(&control.head), &size, sizeof size);
    struct msghdr message = {.msg_iov = worker->pieces, .msg_iovlen = 2 * worker->waiting};
    if (worker->waiting > 1) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
    }
    if (sendmsg(worker->socket, &message, 0) < 0)
        fail("sendmsg");
    worker->waiting = 0;
}

static void begin_round(struct worker *worker, unsigned slot) {
    unsigned seq = FIRST_SEQ + worker->rounds[slot]++;
    uint8_t *head = worker->heads[slot];
    store_16(head + AGGREGATION_SLOT, 2 * slot + (seq & 1));
    store_32(head + AGGREGATION_SEQ, seq);
    worker->pieces[2 * worker->waiting] = (struct iovec){head, HEAD};
    worker->pieces[2 * worker->waiting + 1] = (struct iovec){worker->values, worker->options->lanes * LANE};
    if (++worker->waiting == CHAIN)
        send_chain(worker);
}

static void run_worker(const struct options *options, unsigned rank, int socket, const union socket_address *to,
                       socklen_t to_size) {
    struct worker worker = {.options = options, .socket = socket};
    worker.heads = calloc(options->slots, HEAD);
    worker.rounds = calloc(options->slots, sizeof *worker.rounds);
    for (unsigned at = 0; at < LANES * BLOCK; at++)
        store_32(worker.values + 4 * at, at * (rank + 1));
    uint32_t expected = (BLOCK - 1) * options->workers * (options->workers + 1) / 2;
    for (unsigned slot = 0; slot < options->slots; slot++) {
        uint8_t *head = worker.heads[slot];
        memset(head, 0xFF, HEAD);
        head[AGGREGATION_VERSION] = version_and_op(OP_DATA);
        head[AGGREGATION_ACTIVE] = head[AGGREGATION_PRESENT] = (uint8_t)((1U << options->lanes) - 1);
        head[AGGREGATION_WORKER] = (uint8_t)rank;
        store_16(head + AGGREGATION_JOB, JOB);
        store_16(head + AGGREGATION_GENERATION, 1);
        store_32(head + AGGREGATION_FINGERPRINT, 0xC0FFEE00 | head[AGGREGATION_ACTIVE]);
    }
    if (connect(socket, &to->any, to_size) != 0)
        fail("connect");
    for (unsigned slot = 0; slot < options->slots; slot++)
        begin_round(&worker, slot);
    send_chain(&worker);
    unsigned left = options->slots * options->rounds;
    uint8_t *memory = malloc(1 << 16);
    while (left != 0) {
        union {
            struct cmsghdr head;
            uint8_t room[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec piece = {memory, 1 << 16};
        struct msghdr message = {
            .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
        ssize_t length = recvmsg(socket, &message, MSG_DONTWAIT);
        if (length < 0 && errno == EAGAIN) {
            send_chain(&worker);
            struct pollfd ready = {.fd = socket, .events = POLLIN};
            if (poll(&ready, 1, 5000) <= 0) {
                fprintf(stderr, "worker %u: %u results are missing\n", rank, left);
                exit(1);
            }
            continue;
        }
        if (length < 0)
            fail("recvmsg");
        int step = (int)length;
        if (message.msg_controllen >= sizeof(struct cmsghdr) && control.head.cmsg_type == UDP_GRO)
            memcpy(&step, CMSG_DATA(&control.head), sizeof step);
        for (uint8_t *data = memory; data < memory + length; data += step) {
            unsigned slot = load_16(data + AGGREGATION_SLOT) / 2U;
            if (data[AGGREGATION_VERSION] != version_and_op(OP_RESULT) ||
                load_32(data + AGGREGATION_SEQ) + 1 != FIRST_SEQ + worker.rounds[slot] ||
                (options->lanes != 0 && load_32(data + HEAD + 4 * (BLOCK - 1)) != expected)) {
                fprintf(stderr, "worker %u: a wrong packet of op %u\n", rank, data[0] & 15U);
                exit(1);
            }
            left--;
            if (worker.rounds[slot] < options->rounds)
                begin_round(&worker, slot);
        }
    }
    _exit(0); // without the parent's exit handlers
}

// --- the switch ------------------------------------------------------------------------------------------------------

static int worker_socket(union socket_address *address, struct ip ip) {
    socklen_t length = socket_address_write(address, ip, 0);
    int made = socket(address->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1, size = BUFFER;
    setsockopt(made, SOL_UDP, UDP_GRO, &on, sizeof on);
    if (setsockopt(made, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size) != 0)
        setsockopt(made, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    if (bind(made, &address->any, length) != 0 || getsockname(made, &address->any, &length) != 0)
        fail("bind");
    return made;
}

static void check(int error, const char *what) {
    if (error != 0) {
        errno = -error;
        fail(what);
    }
}

int main(int count, char **arguments) {
    unsigned numbers[] = {4, 256, 400, 1, LANES, 4};
    for (int at = 1; at < count && at <= 6; at++)
        numbers[at - 1] = (unsigned)strtoul(arguments[at], NULL, 10);
    const struct options options = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5] == 6};
    struct native_switch *native = native_open(options.threads);
    struct plane *plane = native_plane_create(native, LANES, BLOCK, 2 * options.slots, 510, 512);
    uint16_t udp_port = 0;
    const struct ip ip = options.ipv6 ? (struct ip){0, 1} : ip_of_ipv4(INADDR_LOOPBACK);
    const struct key own = key_of_ip(ip);
    check(native_add_udp(native, 1, own.words, &udp_port), "udp");
    uint64_t arguments_of[MAX_ARGUMENTS] = {0x020000000001};
    check(native_insert(native, plane, TABLE_OWN_ADDRESSES, own.words, ACTION_OWN, arguments_of), "own address");
    int *sockets = calloc(options.workers, sizeof *sockets);
    uint16_t *replicas = calloc(2 * options.workers, sizeof *replicas);
    for (unsigned rank = 0; rank < options.workers; rank++) {
        union socket_address address;
        sockets[rank] = worker_socket(&address, ip);
        const uint16_t worker_port = socket_address_port(&address);
        const struct key member = key_of_member(1, ip, worker_port, JOB, 1, (uint8_t)rank, 0);
        uint64_t admit[MAX_ARGUMENTS] = {UINT64_C(1) << rank, (UINT64_C(1) << options.workers) - 1, 0,
                                         2 * options.slots, JOB};
        const struct key worker = key_of_worker(JOB, (uint16_t)(rank + 1));
        uint64_t to[MAX_ARGUMENTS] = {0x020000000002, ip.high, ip.low, worker_port};
        check(native_insert(native, plane, TABLE_JOBS, member.words, ACTION_ADMIT, admit), "job");
        check(native_insert(native, plane, TABLE_WORKERS, worker.words, ACTION_ADDRESS, to), "worker");
        replicas[2 * rank] = 1;
        replicas[2 * rank + 1] = (uint16_t)(rank + 1);
    }
    check(native_set_group(native, plane, JOB, replicas, options.workers), "group");
    native_run(native, plane);
    check(native_start(native), "start");

    union socket_address to;
    const socklen_t to_size = socket_address_write(&to, ip, udp_port);
    double started = now();
    for (unsigned rank = 0; rank < options.workers; rank++)
        if (fork() == 0)
            run_worker(&options, rank, sockets[rank], &to, to_size);
    int wrong = 0;
    for (unsigned rank = 0; rank < options.workers; rank++) {
        int status = 0;
        wait(&status);
        wrong += status != 0;
    }
    double seconds = now() - started;
    struct rusage self, workers;
    getrusage(RUSAGE_SELF, &self);
    getrusage(RUSAGE_CHILDREN, &workers);
    double user = (double)self.ru_utime.tv_sec + 1e-6 * (double)self.ru_utime.tv_usec;
    double kernel = (double)self.ru_stime.tv_sec + 1e-6 * (double)self.ru_stime.tv_usec;
    double theirs = (double)(workers.ru_utime.tv_sec + workers.ru_stime.tv_sec) +
                    1e-6 * (double)(workers.ru_utime.tv_usec + workers.ru_stime.tv_usec);
    double packets = (double)options.workers * options.slots * options.rounds;
    printf("{\"workers\": %u, \"slots\": %u, \"rounds\": %u, \"threads\": %u, \"lanes\": %u, \"packets\": %.0f, "
           "\"seconds\": %.4f, \"packets_per_second\": %.0f, \"switch_user_ns\": %.1f, \"switch_kernel_ns\": %.1f, "
           "\"workers_ns\": %.1f, \"failed\": %d}\n",
           options.workers, options.slots, options.rounds, options.threads, options.lanes, packets, seconds,
           packets / seconds, 1e9 * user / packets, 1e9 * kernel / packets, 1e9 * theirs / packets, wrong);
    native_close(native);
    native_plane_free(NULL, plane);
    free(sockets);
    free(replicas);
    return wrong;
}
