// SPDX-License-Identifier: Apache-2.0
/*
 * p4reduce: allreduce of sparse tensors, added up by a programmable switch.
 *
 * An engine represents one rank in one job. It has one or more threads that exchange packets with the switch.
 * p4reduce_submit hands it operations and p4reduce_wait waits for them; p4reduce_allreduce does both. While the
 * engine's thread is idle, a thread that waits does the engine's work itself. Only the engine's thread calls callbacks.
 * All functions may be called from any thread, except where their comments say otherwise.
 *
 * The engine does not join the job itself. `p4reduce exec ... -- program` joins it, and starts a program that calls
 * p4reduce_open_from_environment. docs/c-api.md has an example.
 *
 * ABI: structures that callers make begin with `size`, which the caller sets to their sizeof. A newer library accepts
 * the shorter form. An older library ignores fields that it does not know if they are zero, and otherwise refuses the
 * structure. Everything else is behind opaque pointers. Times are in seconds.
 */
#ifndef P4REDUCE_H
#define P4REDUCE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define P4REDUCE_ABI 4
#define P4REDUCE_MAX_RANKS 4096 /* of a job */
#define P4REDUCE_API __attribute__((visibility("default")))

/* Returns the library's P4REDUCE_ABI, to be compared with the header's. */
P4REDUCE_API unsigned p4reduce_abi(void);

/* Returns the name of the instructions that the library uses on this processor: "avx512", "avx2", "neon" or "portable".
 * The environment variable P4REDUCE_SIMD chooses others. The string is static. */
P4REDUCE_API const char *p4reduce_simd(void);

/* The result of a function, or of an operation. */
typedef enum p4reduce_status {
    P4REDUCE_OK = 0,
    P4REDUCE_INVALID = 1,  /* an argument is not accepted */
    P4REDUCE_MISMATCH = 2, /* ranks called different operations */
    P4REDUCE_ABORTED = 3,  /* the job has ended: a rank has left it, or its controller has ended it */
    P4REDUCE_TIMEOUT = 4,  /* an operation, or a wait for one, took too long */
    P4REDUCE_FAILED = 5,   /* p4reduce_fail was called, or p4reduce_go_on with invalid arguments */
    P4REDUCE_CLOSED = 6,   /* the engine is closed */
    P4REDUCE_SYSTEM = 7,   /* the operating system refused something */
    P4REDUCE_NO_MEMORY = 8,
    P4REDUCE_NETWORK = 9 /* the network cannot carry the job's packets */
} p4reduce_status;

/* An error. Functions that take one fill it if they do not return P4REDUCE_OK; they accept NULL. */
typedef struct p4reduce_error {
    uint32_t size;
    int32_t status; /* p4reduce_status */
    int32_t rank;   /* ABORTED: the rank that left the job, if one did; otherwise -1 */
    /* TIMEOUT: bitmap of the ranks whose packets are missing, as far as known; rank 0 lowest */
    uint32_t awaited[P4REDUCE_MAX_RANKS / 32];
    char message[1024];
} p4reduce_error;

/* A rank's membership in its job, as the controller assigned it. */
typedef struct p4reduce_membership {
    uint32_t size;
    uint32_t job;
    uint32_t generation;
    uint32_t rank;
    uint32_t world_size;   /* 1 to P4REDUCE_MAX_RANKS */
    uint32_t slots;        /* packets under way at once */
    uint32_t lanes;        /* blocks a packet: 1 to 8 */
    uint32_t block_size;   /* words a block: 1 to 1024; a word carries 1, 2 or 4 values */
    uint32_t first_seq;    /* number of each slot's first round; even */
    uint32_t peer_count;   /* ranks at this rank's switch; 0: all of the job */
    uint16_t peers[32];    /* these ranks, in the order of their worker numbers there */
    uint64_t abort_secret; /* the job's secret, by which an ABORT proves that the controller sent it */
    uint32_t sharing;      /* not 0: ranks of one host share one stream; `peers` are the lowest ranks of their hosts */
    uint32_t reserved;     /* 0 */
    /* if `sharing`: for each rank, a number below P4REDUCE_MAX_RANKS that ranks of the same host have in common */
    uint16_t hosts[P4REDUCE_MAX_RANKS];
    uint32_t first_slot; /* for a worker with a share of the job's slots: how many slots come before its own */
    uint32_t all_slots;  /* for such a worker: how many slots the job has; 0: `slots` */
} p4reduce_membership;

/* The times after which unanswered packets are sent again. NULL stands for the defaults that are named here. */
typedef struct p4reduce_timing {
    uint32_t size;
    uint32_t reserved; /* 0 */
    double initial;    /* 0.02: timeout before the first measurement */
    double margin;     /* 0.0005: the least difference between timeout and round trip */
    double ceiling;    /* 1: the longest timeout, with back-off */
    double poll;       /* 0.25: the longest time between packets that poll a round that waits for stragglers */
} p4reduce_timing;

/* Counters of an engine or worker since its start. Bytes are those of UDP payloads. */
typedef struct p4reduce_stats {
    uint32_t size;
    uint32_t reserved;
    uint64_t operations; /* operations that ended without an error */
    uint64_t rounds;     /* rounds whose result was taken, announcements included */
    uint64_t packets_sent;
    uint64_t bytes_sent;
    uint64_t packets_received;
    uint64_t bytes_received;
    uint64_t blocks_sent;    /* non-zero blocks, each counted once, however often it was sent again */
    uint64_t blocks_filled;  /* zero blocks that were sent only to give the switch room for its answer */
    uint64_t blocks_skipped; /* zero blocks that were not sent, of operations that ended without an error */
    uint64_t blocks_received;
    uint64_t retransmissions;
    uint64_t statuses;  /* answers that named stragglers */
    uint64_t stale;     /* packets of an earlier round or generation, which are ignored */
    uint64_t foreign;   /* ignored: packets that are malformed or of another job, and ABORTs without its secret */
    double seconds;     /* time with at least one operation under way */
    uint64_t slowdowns; /* times that the congestion window was reduced, because a queue was long or has overflowed */
    /* operations for which the kernel did not let ranks of the host read or map each other's tensors */
    uint64_t local_fallbacks;
    uint64_t marks; /* answers of rounds of which a router has marked a packet, because of a long queue (ECN) */
} p4reduce_stats;

/* The type of an array's values. */
typedef enum p4reduce_type {
    P4REDUCE_FLOAT32 = 1,
    P4REDUCE_INT32 = 2,
    P4REDUCE_FLOAT16 = 3, /* added as float32; the sum is rounded to nearest, ties to even */
    P4REDUCE_BFLOAT16 = 4 /* the same */
} p4reduce_type;

/* The integers that stand for floats on the wire: one, two or four in each word of a block. */
typedef enum p4reduce_wire {
    P4REDUCE_WIRE_INT32 = 0,
    P4REDUCE_WIRE_INT16 = 1,
    P4REDUCE_WIRE_INT8 = 2 /* with stochastic rounding; up to 127 ranks */
} p4reduce_wire;

/* The treatment of a rank's blocks of zeros. Sums are the same, and ranks need not agree on it. */
typedef enum p4reduce_zeros {
    P4REDUCE_ZEROS_SKIPPED = 0,
    P4REDUCE_ZEROS_FIRST = 1, /* skipped, except for the first block of each stream */
    P4REDUCE_ZEROS_SENT = 2   /* sent as if they were not zero */
} p4reduce_zeros;

/* One allreduce: the array's contents are replaced by the sum over all ranks, bit for bit the same on each.
 *
 * Ranks must call with the same `count`, `dtype`, `reduce_op` and `wire`, in the same order. float32 sums are exact to
 * 31 - log2(world_size) bits of the largest magnitude in each block. On a wire of int16 or int8, these are 15 or 7 in
 * place of 31, and a block has two or four times as many values. int32 wraps around. */
typedef struct p4reduce_request {
    uint32_t size;
    uint32_t type;         /* p4reduce_type of the data */
    void *data;            /* stays the caller's, who must not touch it until the end; undefined after an error */
    uint64_t count;        /* number of values */
    const char *dtype;     /* the caller's dtype, if not `type`'s name, such as "float64"; at most 31 characters */
    const char *reduce_op; /* NULL for "sum"; at most 31 characters. It is only compared with the other ranks' */
    float divisor;         /* not 0 or 1: sums of floats are divided by it, as float32, for an average */
    uint32_t wire;         /* p4reduce_wire; for int32 data, P4REDUCE_WIRE_INT32 */
    double timeout;        /* counted from the end of all earlier operations; 0 for 30 minutes */
    const char *name;      /* for error messages; NULL for "allreduce (<reduce_op>) of <count> <dtype>" */
    void (*on_end)(void *context, const p4reduce_error *error); /* see p4reduce_submit; may be NULL */
    void *context;
    float *residual;    /* NULL, or for float32, `count` zeros: receives the part of this rank's values that the wire
                           cannot represent. The rules are those of `data` */
    uint32_t read_only; /* not 0: `data` is added but never written to; only the other ranks get the sum */
    uint32_t zeros;     /* p4reduce_zeros */
} p4reduce_request;

/* The progress of an engine that holds operations. All fields except `size` are 0 until the first report. */
typedef struct p4reduce_held {
    uint32_t size;
    uint32_t quiet;      /* not 0: all operations that have begun have ended here */
    uint64_t operations; /* how many of the job's operations have begun; the first is number 0 */
    uint32_t first_seq;  /* if quiet: an even round that no slot has reached */
    uint32_t changes;    /* number of reports so far */
} p4reduce_held;

/* An engine, made by one of the functions p4reduce_open..., and a handle for one of its operations. */
typedef struct p4reduce_engine p4reduce_engine;
typedef struct p4reduce_operation p4reduce_operation;

/* The kind of socket by which packets travel. */
typedef enum p4reduce_link {
    P4REDUCE_LINK_UDP = 1,   /* `socket`: a UDP socket that is connected to the switch */
    P4REDUCE_LINK_PACKET = 2 /* `socket`: an AF_PACKET SOCK_RAW socket, bound to its interface and filtered */
} p4reduce_link;

/* Options of p4reduce_open. Fields that are not set are 0. */
typedef struct p4reduce_options {
    uint32_t size;
    uint32_t link;     /* p4reduce_link */
    int32_t socket;    /* belongs to the caller, who must not use or close it before p4reduce_close */
    uint32_t reserved; /* 0 */
    /* LINK_PACKET: Ethernet, IP and UDP header with lengths and checksums 0. The EtherType says how long they are: 42
     * bytes with IPv4 (0x0800), or 62 bytes with IPv6 (0x86DD) */
    const uint8_t *headers;
    const char *switch_address; /* for error messages: "10.0.0.1:31314" or "[fd00::1]:31314" */
    const char *local_address;  /* for error messages: "10.0.0.2" or "fd00::2" */
    const char *thread_name;    /* at most 15 characters; NULL for "p4reduce" */
    const p4reduce_timing *timing;
    const int32_t *more_sockets; /* LINK_UDP: sockets to aggregators 1, 2, ..., then all those of threads 1, 2, ... */
    uint32_t more_count;         /* how many these are; aggregators are at most 32 */
    uint32_t threads;            /* LINK_UDP: threads that share the slots, each with as many sockets; 0: one */
    const uint32_t *more_jobs;   /* for all threads but the first: job number << 16 | generation */
    /* LINK_UDP: for each socket, job number << 16 | generation at its aggregator; NULL: those of its thread */
    const uint32_t *aggregator_jobs;
    /* LINK_UDP: how many of each thread's sockets, its last ones, lead to aggregators that have none of the slots until
     * p4reduce_move names them as `via` */
    uint32_t spares;
    uint32_t reserved_2; /* 0 */
} p4reduce_options;

/* Starts an engine, which p4reduce_free ends. Structures and strings are copied. Returns NULL on error. */
P4REDUCE_API p4reduce_engine *p4reduce_open(const p4reduce_membership *membership, const p4reduce_options *options,
                                            p4reduce_error *error);

/* Starts the engine of a program that `p4reduce exec` runs. p4reduce_free ends it. Returns NULL on error. */
P4REDUCE_API p4reduce_engine *p4reduce_open_from_environment(p4reduce_error *error);

/* Starts an operation. If `operation` is not NULL, it receives a handle to wait for, which p4reduce_release gives back.
 * The engine's thread calls `on_end` once, with NULL or the error. `on_end` must be quick, must not wait for another
 * operation and must not free the engine. It is not called if this function does not return P4REDUCE_OK. */
P4REDUCE_API p4reduce_status p4reduce_submit(p4reduce_engine *engine, const p4reduce_request *request,
                                             p4reduce_operation **operation, p4reduce_error *error);

/* Waits until an operation has ended, and returns its status. After `timeout` seconds (negative: no limit) it returns
 * P4REDUCE_TIMEOUT with an empty message. The operation then goes on, and can be waited for again. */
P4REDUCE_API p4reduce_status p4reduce_wait(p4reduce_operation *operation, double timeout, p4reduce_error *error);

/* Gives a handle back. Its operation goes on if it has not ended. Must not be called after p4reduce_free. */
P4REDUCE_API void p4reduce_release(p4reduce_operation *operation);

/* Executes an operation: p4reduce_submit, p4reduce_wait and p4reduce_release in one. */
P4REDUCE_API p4reduce_status p4reduce_allreduce(p4reduce_engine *engine, const p4reduce_request *request,
                                                p4reduce_error *error);

/* Waits until any operation of the engine ends, for callers with many operations under way. Each end is reported once.
 * Returns the `context` of the operation's request, with its result in `error` (status OK if there was no error).
 * Returns NULL after `timeout` seconds (negative: no limit), and at once with P4REDUCE_CLOSED if the engine is closed
 * and all ends were reported. Only operations without a handle and without `on_end` are reported. */
P4REDUCE_API void *p4reduce_next_ended(p4reduce_engine *engine, double timeout, p4reduce_error *error);

/* The next three functions wait for one certain operation among those that p4reduce_next_ended reports. Operations must
 * then have different contexts. The end of an operation that is waited for does not wake up p4reduce_next_ended, which
 * still reports it the next time that it looks, unless it is forgotten before. */

/* Starts an operation and waits for it: p4reduce_submit and p4reduce_await in one. Returns the status of
 * p4reduce_submit, and the result of p4reduce_await in `ended`. */
P4REDUCE_API p4reduce_status p4reduce_run(p4reduce_engine *engine, const p4reduce_request *request, double timeout,
                                          int *ended, p4reduce_error *error);

/* Waits until the operation with this context has ended. Returns 1, with the operation's result in `error`; 0 after
 * `timeout` seconds (negative: no limit); -1 if there is no such operation, or its end was already reported. */
P4REDUCE_API int p4reduce_await(p4reduce_engine *engine, const void *context, double timeout, p4reduce_error *error);

/* Drops the report of an operation that has ended. */
P4REDUCE_API void p4reduce_forget(p4reduce_engine *engine, const void *context);

/* Ends all operations with P4REDUCE_FAILED and this message, and lets none start. Only the first failure counts. */
P4REDUCE_API void p4reduce_fail(p4reduce_engine *engine, const char *message);

/* Ends all operations in the same way, for a failure of the job that the controller has reported. P4REDUCE_ABORTED: the
 * job has ended, because `rank` left it (-1: no rank did). P4REDUCE_MISMATCH: ranks call different operations. */
P4REDUCE_API void p4reduce_abort(p4reduce_engine *engine, p4reduce_status status, int32_t rank, const char *message);

/* Returns a half, 2 * slot + round mod 2, whose packet was sent again and has had no answer for 3 s; -1 if there is
 * none. The controller can ask the switch which ranks are counted there. */
P4REDUCE_API int32_t p4reduce_unanswered(p4reduce_engine *engine);

/* Reports the controller's answer: the switch has counted a rank in round `seq` of the half. If no rank can be in that
 * round yet, all operations end with P4REDUCE_MISMATCH and this message. */
P4REDUCE_API void p4reduce_counted(p4reduce_engine *engine, uint32_t half, uint32_t seq, const char *message);

/* Holds operations, so that the job's slots can change between two of them: none begins after the job's first
 * `operations`, or after those that have begun, if they are more. Operations that are submitted meanwhile wait, and
 * their time limits run. Returns a number for p4reduce_await_held. Returns 0, and holds nothing, if the engine has
 * several threads, or sends no packets of its own. */
P4REDUCE_API uint64_t p4reduce_hold(p4reduce_engine *engine, uint64_t operations);

/* Waits until the engine's progress differs from `held`, and updates it. `hold`: the number that p4reduce_hold
 * returned. Returns 1 if `held` was updated; 0 after `timeout` seconds; -1 if that hold is over, by p4reduce_go_on,
 * another p4reduce_hold, or the engine's failure. */
P4REDUCE_API int p4reduce_await_held(p4reduce_engine *engine, uint64_t hold, p4reduce_held *held, double timeout);

/* Ends a hold. The engine continues with the first `slots` of the membership's slots, each from round `first_seq`; if
 * `slots` is 0, it continues as before. Every rank calls this after the same operation, when the switch's slots have
 * been reset. All operations end with P4REDUCE_FAILED if the arguments are invalid. Does nothing without a hold. */
P4REDUCE_API void p4reduce_go_on(p4reduce_engine *engine, uint32_t slots, uint32_t first_seq);

/* Suspends the slots of one of the job's aggregators, which is lost: slots aggregator, aggregator + n, and so on, of n
 * aggregators, in each thread's share of the slots. Nothing is sent there until p4reduce_move. Writes the round of each
 * of these slots to `rounds`, in their order, at most `room`. Returns how many slots they are; -1 if there is no such
 * aggregator, or the engine sends no packets of its own, or has ended. */
P4REDUCE_API int64_t p4reduce_suspend(p4reduce_engine *engine, uint32_t aggregator, uint32_t *rounds, size_t room);

/* Resumes these slots at the switch of the aggregator `via`, whose sockets then carry the packets of both. `jobs`: for
 * each of the engine's threads, job number << 16 | generation in packets of these slots. `rounds`: the round from which
 * each of the `count` slots goes on, the least of all ranks'. All operations end with P4REDUCE_FAILED if that cannot
 * be. Does nothing if p4reduce_suspend would return -1. */
P4REDUCE_API void p4reduce_move(p4reduce_engine *engine, uint32_t aggregator, uint32_t via, const uint32_t *jobs,
                                const uint32_t *rounds, size_t count);

/* Returns the most slots that any operation begun since the last call uses; 0 if none has begun. */
P4REDUCE_API uint32_t p4reduce_take_most_slots(p4reduce_engine *engine);

/* Returns the failure after which the engine accepts no more operations; P4REDUCE_OK if there is none. */
P4REDUCE_API p4reduce_status p4reduce_failure(p4reduce_engine *engine, p4reduce_error *error);

/* Writes in words what operations wait for. */
P4REDUCE_API void p4reduce_progress(p4reduce_engine *engine, char *text, size_t room);

/* Sets the ranks that operations wait for, as far as known: a bitmap, rank 0 the lowest bit of the first word. */
P4REDUCE_API void p4reduce_awaited(p4reduce_engine *engine, uint32_t awaited[P4REDUCE_MAX_RANKS / 32]);

/* Writes in words how packets travel: "UDP, GSO, GRO". */
P4REDUCE_API void p4reduce_describe(p4reduce_engine *engine, char *text, size_t room);

/* Copies the engine's counters. */
P4REDUCE_API void p4reduce_get_stats(p4reduce_engine *engine, p4reduce_stats *stats);

/* Ends all operations and the engine's thread. May be called more than once, but not from `on_end`. */
P4REDUCE_API void p4reduce_close(p4reduce_engine *engine);

/* Closes the engine and frees its memory. No other call may be under way, and none may follow. NULL is accepted. */
P4REDUCE_API void p4reduce_free(p4reduce_engine *engine);

#ifdef __cplusplus
}
#endif

#endif
