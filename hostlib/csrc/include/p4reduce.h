// SPDX-License-Identifier: Apache-2.0
/*
 * p4reduce: allreduce of sparse tensors, added up by a programmable switch.
 *
 * An engine is one rank's place in one job: a thread, or several, that exchange packets with the switch. Operations are
 * handed to it with p4reduce_submit and waited for with p4reduce_wait, or done at once with p4reduce_allreduce. A thread that
 * waits does the engine's work itself where its thread rests, but for callbacks, which that thread alone calls. All
 * functions may be called from any thread, except where they say otherwise.
 *
 * Joining a job is the control service's business. `p4reduce exec ... -- program` joins, and starts a program that
 * calls p4reduce_open_from_environment. docs/c-api.md has an example.
 *
 * ABI: structures that callers make begin with `size`, which the caller sets to their sizeof. A library that is newer
 * takes the shorter form; one that is older ignores fields it does not know, if they are zero, and refuses them
 * otherwise. Everything else is behind opaque pointers. Times are in seconds.
 */
#ifndef P4REDUCE_H
#define P4REDUCE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define P4REDUCE_ABI 3
#define P4REDUCE_API __attribute__((visibility("default")))

/* The library's P4REDUCE_ABI, to be compared with the header's. */
P4REDUCE_API unsigned p4reduce_abi(void);

/* The instructions that the library uses on this processor: "avx512", "avx2", "neon" or "portable". The environment
 * variable P4REDUCE_SIMD chooses another. */
P4REDUCE_API const char *p4reduce_simd(void);

/* What functions return. */
typedef enum p4reduce_status {
    P4REDUCE_OK = 0,
    P4REDUCE_INVALID = 1,  /* an argument is not accepted */
    P4REDUCE_MISMATCH = 2, /* ranks called different operations */
    P4REDUCE_ABORTED = 3,  /* the job is dead: a rank has left it, or its controller has ended it */
    P4REDUCE_TIMEOUT = 4,  /* an operation, or a wait for one, took too long */
    P4REDUCE_FAILED = 5,   /* p4reduce_fail was called, or p4reduce_go_on with what cannot be */
    P4REDUCE_CLOSED = 6,   /* the engine is closed */
    P4REDUCE_SYSTEM = 7,   /* the operating system refused something */
    P4REDUCE_NO_MEMORY = 8,
    P4REDUCE_NETWORK = 9 /* the network cannot carry the job's packets */
} p4reduce_status;

/* Filled by functions that take one and do not return P4REDUCE_OK. They accept NULL. */
typedef struct p4reduce_error {
    uint32_t size;
    int32_t status;      /* p4reduce_status */
    int32_t rank;        /* ABORTED: the rank that went, where one did; else -1 */
    uint32_t awaited[8]; /* TIMEOUT: bitmap of the ranks that were not heard of, as far as known; rank 0 lowest */
    char message[1024];
} p4reduce_error;

/* A rank's place in its job, as the controller assigned it. */
typedef struct p4reduce_membership {
    uint32_t size;
    uint32_t job;
    uint32_t generation;
    uint32_t rank;
    uint32_t world_size;   /* 1 to 255 */
    uint32_t slots;        /* packets under way at once */
    uint32_t lanes;        /* blocks a packet: 1 to 8 */
    uint32_t block_size;   /* words a block: 1 to 1024; a word carries 1, 2 or 4 values */
    uint32_t first_seq;    /* number of each slot's first round; even */
    uint32_t peer_count;   /* ranks at this rank's switch; 0: all of the job */
    uint8_t peers[32];     /* which, each in its place as a worker there */
    uint64_t abort_secret; /* the job's, by which an ABORT shows that it is the controller's */
    uint32_t sharing;      /* not 0: ranks of one host share one stream; `peers` are the lowest ranks of their hosts */
    uint32_t reserved;     /* 0 */
    uint8_t hosts[256];    /* where `sharing`: of each rank, a number that it has in common with those of its host */
    uint32_t first_slot;   /* for a worker that has a share of the job's slots: how many come before its own, */
    uint32_t all_slots;    /* and how many the job has; 0: `slots` */
} p4reduce_membership;

/* When unanswered packets are sent again. NULL where one is accepted stands for the defaults named here. */
typedef struct p4reduce_timing {
    uint32_t size;
    uint32_t reserved; /* 0 */
    double initial;    /* 0.02: timeout before anything was measured */
    double margin;     /* 0.0005: how much longer than the round trip the timeout is at least */
    double ceiling;    /* 1: the longest timeout, with back-off */
    double poll;       /* 0.25: the longest wait between packets that ask after a round that waits for stragglers */
} p4reduce_timing;

/* Bytes are those of UDP payloads. */
typedef struct p4reduce_stats {
    uint32_t size;
    uint32_t reserved;
    uint64_t operations; /* that ended well */
    uint64_t rounds;     /* whose result was taken, announcements included */
    uint64_t packets_sent;
    uint64_t bytes_sent;
    uint64_t packets_received;
    uint64_t bytes_received;
    uint64_t blocks_sent;    /* non-zero ones, each counted once, however often it was sent again */
    uint64_t blocks_filled;  /* zero blocks that were sent all the same, to give the switch room for its answer */
    uint64_t blocks_skipped; /* zero blocks of operations that ended well: not to be sent */
    uint64_t blocks_received;
    uint64_t retransmissions;
    uint64_t statuses;  /* answers that named stragglers */
    uint64_t stale;     /* packets of an earlier round or generation, ignored */
    uint64_t foreign;   /* malformed packets, or not of this job, and ABORTs without its secret, ignored */
    double seconds;     /* with at least one operation under way */
    uint64_t slowdowns; /* times that a queue seemed to have overflowed, and packets were spread out more */
    /* operations for which the kernel did not let ranks of the host read, or map, each other's tensors */
    uint64_t local_fallbacks;
} p4reduce_stats;

typedef enum p4reduce_type {
    P4REDUCE_FLOAT32 = 1,
    P4REDUCE_INT32 = 2,
    P4REDUCE_FLOAT16 = 3, /* added up as float32, of which the sum is rounded to nearest, ties to even */
    P4REDUCE_BFLOAT16 = 4 /* the same */
} p4reduce_type;

/* The integers that stand for floats on the wire: one, two or four in each word of a block. */
typedef enum p4reduce_wire {
    P4REDUCE_WIRE_INT32 = 0,
    P4REDUCE_WIRE_INT16 = 1,
    P4REDUCE_WIRE_INT8 = 2 /* rounded up or down by chance; up to 127 ranks */
} p4reduce_wire;

/* What becomes of a rank's blocks of zeros. Sums are the same, and ranks need not agree on it. */
typedef enum p4reduce_zeros {
    P4REDUCE_ZEROS_SKIPPED = 0,
    P4REDUCE_ZEROS_FIRST = 1, /* skipped, but for the first block of each stream */
    P4REDUCE_ZEROS_SENT = 2   /* sent as if they were not zero */
} p4reduce_zeros;

/* One allreduce: the array's contents are replaced by the sum over all ranks, bit for bit the same on each.
 *
 * Ranks must call with the same `count`, `dtype`, `reduce_op` and `wire`, in the same order. float32 sums are exact to
 * 31 - log2(world_size) bits of the largest magnitude in each block, to 16 and 8 less over narrower integers, of which a
 * block has two or four times as many; int32 wraps around. */
typedef struct p4reduce_request {
    uint32_t size;
    uint32_t type;         /* p4reduce_type of the data */
    void *data;            /* nobody else may touch it until the operation has ended; undefined after an error */
    uint64_t count;        /* of values */
    const char *dtype;     /* what the caller has, if it is not `type`'s name, say "float64"; at most 31 characters */
    const char *reduce_op; /* NULL for "sum"; at most 31 characters. Only compared with the other ranks' */
    float divisor;         /* not 0 or 1: sums of floats are divided by it, as float32, as for an average */
    uint32_t wire;         /* p4reduce_wire; of int32 data, P4REDUCE_WIRE_INT32 */
    double timeout;        /* from when no earlier operation is under way any more; 0 for 30 minutes */
    const char *name;      /* for error messages; NULL for "allreduce (<reduce_op>) of <count> <dtype>" */
    void (*on_end)(void *context, const p4reduce_error *error); /* see p4reduce_submit; may be NULL */
    void *context;
    float *residual; /* of float32, `count` zeros: becomes what of this rank's values the wire has no digits for; NULL
                        for none. As for `data` */
    uint32_t read_only; /* not 0: `data` is what this rank adds, and stays as it is; the sum goes to the others alone */
    uint32_t zeros;     /* p4reduce_zeros */
} p4reduce_request;

/* How far an engine that holds operations has come. All 0 but `size` until the first report. */
typedef struct p4reduce_held {
    uint32_t size;
    uint32_t quiet;      /* not 0: all operations begun have ended here */
    uint64_t operations; /* begun, of the job's, the first of which is number 0 */
    uint32_t first_seq;  /* where quiet: an even round that no slot has come to yet */
    uint32_t changes;    /* so often has it told something */
} p4reduce_held;

typedef struct p4reduce_engine p4reduce_engine;
typedef struct p4reduce_operation p4reduce_operation;

/* How packets travel. */
typedef enum p4reduce_link {
    P4REDUCE_LINK_UDP = 1,   /* `socket`: a UDP socket that is connected to the switch */
    P4REDUCE_LINK_PACKET = 2 /* `socket`: an AF_PACKET SOCK_RAW socket, bound to its interface and filtered */
} p4reduce_link;

typedef struct p4reduce_options {
    uint32_t size;
    uint32_t link;          /* p4reduce_link */
    int32_t socket;         /* stays the caller's, who must not use or close it before p4reduce_close */
    uint32_t reserved;      /* 0 */
    const uint8_t *headers; /* LINK_PACKET: 42 bytes of Ethernet, IPv4 and UDP header with lengths and checksums 0 */
    const char *switch_address; /* for error messages: "10.0.0.1:31314" */
    const char *local_address;  /* for error messages: "10.0.0.2" */
    const char *thread_name;    /* at most 15 characters; NULL for "p4reduce" */
    const p4reduce_timing *timing;
    const int32_t *more_sockets; /* LINK_UDP, where several aggregators share the job's slots: those of all but the */
    uint32_t more_count;         /* first, to which slots 1, 2, ... go, and how many they are: at most 31 */
    uint32_t threads;            /* LINK_UDP: how many share the slots, each with as many sockets; 0: one */
    const uint32_t *more_jobs;   /* of all threads but the first: job number << 16 | generation */
} p4reduce_options;

/* Starts an engine. Returns NULL on error. */
P4REDUCE_API p4reduce_engine *p4reduce_open(const p4reduce_membership *membership, const p4reduce_options *options,
                                            p4reduce_error *error);

/* Starts the engine of a program that `p4reduce exec` runs. Returns NULL on error. */
P4REDUCE_API p4reduce_engine *p4reduce_open_from_environment(p4reduce_error *error);

/* Starts an operation. With `operation`, the caller gets a handle to wait for, which p4reduce_release takes back.
 * `on_end` is called once, from the engine's thread, with NULL or the error; it must be quick, must not wait for
 * another operation and must not free the engine. It is not called if this function does not return P4REDUCE_OK. */
P4REDUCE_API p4reduce_status p4reduce_submit(p4reduce_engine *engine, const p4reduce_request *request,
                                             p4reduce_operation **operation, p4reduce_error *error);

/* Waits until an operation has ended, and returns how. After `timeout` (negative: none) it returns P4REDUCE_TIMEOUT
 * with an empty message; the operation goes on and can be waited for again. */
P4REDUCE_API p4reduce_status p4reduce_wait(p4reduce_operation *operation, double timeout, p4reduce_error *error);

/* Gives a handle back; its operation goes on if it has not ended. Not after p4reduce_free. */
P4REDUCE_API void p4reduce_release(p4reduce_operation *operation);

/* p4reduce_submit, p4reduce_wait and p4reduce_release in one. */
P4REDUCE_API p4reduce_status p4reduce_allreduce(p4reduce_engine *engine, const p4reduce_request *request,
                                                p4reduce_error *error);

/* Waits for the next operation of the engine that ends, whichever it is, for callers that have many under way. Returns
 * the `context` of its request and fills `error` (status OK when it ended well); NULL after `timeout` (negative: none),
 * or at once with P4REDUCE_CLOSED when the engine is closed and all were told. Only for operations that were submitted
 * with neither a handle nor `on_end`. */
P4REDUCE_API void *p4reduce_next_ended(p4reduce_engine *engine, double timeout, p4reduce_error *error);

/* Of operations that p4reduce_next_ended tells of, for callers that wait for a certain one; contexts are then to be
 * each another. An end that is waited for wakes up nobody in p4reduce_next_ended, which still tells of it when it next
 * looks, unless it is forgotten before. */

/* p4reduce_submit and p4reduce_await in one. Returns what p4reduce_submit does; `ended`: what p4reduce_await does. */
P4REDUCE_API p4reduce_status p4reduce_run(p4reduce_engine *engine, const p4reduce_request *request, double timeout,
                                          int *ended, p4reduce_error *error);

/* Waits until the operation with this context has ended. Returns 1, and how in `error`; 0 after `timeout` (negative:
 * none); -1 if there is none with this context, or it was told of. */
P4REDUCE_API int p4reduce_await(p4reduce_engine *engine, const void *context, double timeout, p4reduce_error *error);

/* An operation that has ended is not to be told of any more. */
P4REDUCE_API void p4reduce_forget(p4reduce_engine *engine, const void *context);

/* Ends all operations with P4REDUCE_FAILED and this message, and lets none start. The first failure stays. */
P4REDUCE_API void p4reduce_fail(p4reduce_engine *engine, const char *message);

/* The same for what is no failure of this rank, as the controller was heard to say. P4REDUCE_ABORTED: the job is dead, since
 * that rank went (-1: none). P4REDUCE_MISMATCH: ranks do not call the same. */
P4REDUCE_API void p4reduce_abort(p4reduce_engine *engine, p4reduce_status status, int32_t rank, const char *message);

/* The half, 2 * slot + round mod 2, in which a packet has had no answer for 3 s though it was sent again; -1 if there
 * is none. The controller can ask the switch which ranks are counted there. */
P4REDUCE_API int32_t p4reduce_unanswered(p4reduce_engine *engine);

/* What the controller was told: that the switch has counted a rank in round `seq` of the half. Ends all operations with
 * P4REDUCE_MISMATCH and this message, if no rank can be in that round yet. */
P4REDUCE_API void p4reduce_counted(p4reduce_engine *engine, uint32_t half, uint32_t seq, const char *message);

/* Begins no operation after so many of the job's, or those that have begun, if they are more, so that the job's slots can
 * change between two operations. What is submitted meanwhile waits, and its time limit runs. Returns a number for
 * p4reduce_await_held; 0, and nothing is held, where the engine has several threads, or none of its own packets. */
P4REDUCE_API uint64_t p4reduce_hold(p4reduce_engine *engine, uint64_t operations);

/* Waits until the engine, which holds operations by the call of that number, has something to tell that `held` does not
 * say yet. Returns 1 then; 0 after `timeout` seconds; -1 where that hold is over: by p4reduce_go_on, another
 * p4reduce_hold, or the engine's failure. */
P4REDUCE_API int p4reduce_await_held(p4reduce_engine *engine, uint64_t hold, p4reduce_held *held, double timeout);

/* Goes on after p4reduce_hold, with the first `slots` of those of the membership, each of which begins with round
 * `first_seq`; 0: as before. Every rank does so after the same operation, when the switch's slots have been reset. Ends
 * all operations with P4REDUCE_FAILED where that cannot be; does nothing where the engine does not hold. */
P4REDUCE_API void p4reduce_go_on(p4reduce_engine *engine, uint32_t slots, uint32_t first_seq);

/* The most slots that one of the operations begun since the last call uses; 0 where there are none. */
P4REDUCE_API uint32_t p4reduce_take_most_slots(p4reduce_engine *engine);

/* Why the engine takes no operations any more; P4REDUCE_OK while it does. */
P4REDUCE_API p4reduce_status p4reduce_failure(p4reduce_engine *engine, p4reduce_error *error);

/* What operations wait for, in words. */
P4REDUCE_API void p4reduce_progress(p4reduce_engine *engine, char *text, size_t room);

/* The ranks that operations wait for, as far as known: a bitmap, rank 0 the lowest bit of the first word. */
P4REDUCE_API void p4reduce_awaited(p4reduce_engine *engine, uint32_t awaited[8]);

/* How packets travel, in words: "UDP, GSO, GRO". */
P4REDUCE_API void p4reduce_describe(p4reduce_engine *engine, char *text, size_t room);

P4REDUCE_API void p4reduce_get_stats(p4reduce_engine *engine, p4reduce_stats *stats);

/* Ends all operations and the thread; may be called more than once, not from `on_end`. */
P4REDUCE_API void p4reduce_close(p4reduce_engine *engine);

/* Closes the engine and gives its memory back. No other call may be under way, and none may follow. NULL is accepted.
 */
P4REDUCE_API void p4reduce_free(p4reduce_engine *engine);

#ifdef __cplusplus
}
#endif

#endif
