// SPDX-License-Identifier: Apache-2.0
// The thread that gives a worker its packets, its clock and its operations: hostlib/p4reduce/engine/engine.py in C. It is made
// in engine_open.c; what it does is in engine_turns.c and engine_packets.c, what others may ask of it in
// engine_operations.c and engine_calls.c. A thread that waits may do its work meanwhile: engine_driving.c. Several that
// share a job's slots are a team: engine_team.c.
#ifndef P4REDUCE_ENGINE_H
#define P4REDUCE_ENGINE_H

#include "link/link.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

enum { OPERATION_NAME_BYTES = 128, ADDRESS_BYTES = 64, TEXT_BYTES = 512 };

// An operation, from its submission until both the engine and its caller have let go of it.
struct p4reduce_operation {
    p4reduce_engine *engine;
    struct task *task; // until the worker has it
    char name[OPERATION_NAME_BYTES];
    double timeout;
    void (*on_end)(void *context, const p4reduce_error *error);
    void *context;
    uint64_t number;                    // of the job's, as all ranks count them
    struct p4reduce_operation *further; // the next of those that others of the team carry of it, until they have it
    // Guarded by the engine's lock:
    struct p4reduce_operation *next;           // in the inbox
    struct p4reduce_operation *sooner, *later; // among those that p4reduce_next_ended is to tell of
    bool ended, held, collected;               // held by its caller; to be told by p4reduce_next_ended
    unsigned waiters;                          // threads that wait for its end
    unsigned others;                           // of the team, that have not ended what they carry of it
    bool carried;                              // this engine has, with `error`
    p4reduce_error error;
    // The driver's: among those under way.
    struct p4reduce_operation *newer, *older;
    unsigned parts; // under way, where ranks share a stream
    bool all_parts; // there will be no more
};

struct operation_queue {
    struct p4reduce_operation *first, *last;
};

// Who carries operations: engine_driving.h. Guarded by the engine's lock.
struct driving {
    pthread_cond_t left; // for the engine's thread, while another drives
    bool taken;          // some thread drives
    bool lent;           // and it is not the engine's
    bool called;         // the engine's thread is to drive
    bool parked;         // it waits for `left`, not for packets
    bool owed;           // what is next to begin is its own
    unsigned spells;     // in which others have driven
};

// What other threads may ask the engine's thread for.
struct snapshot {
    p4reduce_stats stats;
    char progress[TEXT_BYTES], link[TEXT_BYTES];
    int32_t unanswered;
    bool busy;       // the worker has an operation under way: the oldest is of this number, and waits for these ranks
    uint32_t oldest;
    uint32_t awaited[8];
};

// What the switch has counted, as the controller says; seq and half are of a round, `message` for if it cannot be.
struct counted {
    bool news;
    uint32_t half, seq;
    char message[TEXT_BYTES];
};

// Operations held back, so that the job's slots can change: engine_holding.h.
struct holding {
    // Guarded by the engine's lock. What others want: to go on, in so many slots, and then to hold after so many
    // operations.
    bool to_go_on, to_hold;
    uint32_t slots, first_seq;
    uint64_t wanted;
    uint64_t number;    // of the latest call
    uint64_t answered;  // that `told` answers
    p4reduce_held told; // the driver's to change
    // The driver's, but for `holds`, which it changes under the lock.
    bool holds;
    uint64_t limit;   // operations from this number on are held back
    uint64_t begun;   // operations
    uint64_t telling; // the call that it holds by
    double since;
    p4reduce_operation *held_back; // of those under way, the first; NULL where there is none
};

// What who drives waits for.
struct rest {
    struct pollfd descriptors[3]; // the link's socket, `wake`, and the bell of the host
    double due;
};

// Engines of one rank that share its job's slots, each with a thread and a socket of its own. Callers know the first,
// whose slots every operation uses. What it and the others have for each other is in engine_team.c.
struct team {
    uint32_t threads;
    // Not under a lock, by who drives an engine of the team: it has failed; which of them is furthest behind?
    void (*failed)(const struct team *team, const p4reduce_engine *engine, const p4reduce_error *error);
    struct snapshot (*furthest)(const struct team *team, const struct snapshot *own);
    p4reduce_engine *engines[];
};

struct p4reduce_engine {
    p4reduce_membership membership;
    struct team *team; // NULL: it is the rank's only one
    char switch_address[ADDRESS_BYTES], local_address[ADDRESS_BYTES];
    int wake;
    pthread_t thread;

    // Shared; guarded by the lock but for `news`, which says that there is something in it for the driver.
    pthread_mutex_t lock;
    pthread_cond_t changed; // for who waits for an operation, a snapshot or the thread's end
    pthread_cond_t untold;  // for p4reduce_next_ended: an operation has ended that nobody waits for
    atomic_bool news;
    bool rung; // `wake` is readable
    struct operation_queue inbox;
    struct operation_queue done; // by the whole team, while this one still has them under way
    uint64_t numbered;           // operations so far
    struct p4reduce_operation *soonest, *latest; // that p4reduce_next_ended is to tell of, as they were submitted
    struct driving driving;
    p4reduce_error failure; // status P4REDUCE_OK while there is none
    // One from outside, until the thread has looked whether a packet that has already come says more of the cause.
    p4reduce_error outside;
    struct counted told_of; // the latest
    struct holding holding;
    atomic_uint most_slots; // that an operation uses, of those begun since somebody has asked
    bool closing, stopped, joined;
    unsigned asked, answered; // for a snapshot
    struct snapshot snapshot;
    void (*take_snapshot)(p4reduce_engine *engine, double now); // under the lock: what others ask for, into `snapshot`

    // Where ranks reduce in their host's memory; else NULL. Then there are neither a worker nor a link.
    struct local *local;

    // Where ranks of a host share a stream; else NULL. Of them, the leader alone has a worker and a link.
    struct host *host;

    // The driver's.
    p4reduce_worker *worker;
    struct link *link;
    struct iovec *payloads; // room for those of all slots
    struct slot **sorted;
    bool *grouped;
    struct p4reduce_operation *oldest, *newest; // under way
    unsigned callbacks;                         // operations under way that have one
    double oldest_since, busy_since, heard_at, seconds;
    double looked_at, look_due;   // the last turn, and when there was to be another at the latest
    double stood_from, stood_to;  // the last time that there was none, though it was due
    unsigned wet_turns;     // in which the link had more than was taken
    double gap, counted_at; // seconds from one packet to the next, smoothed, and when so many had been `counted`
    uint64_t counted;
    bool must_stop, told_team; // of its failure
};

// What every engine has: made, given its thread, which runs `run` with the engine, stopped by that thread as the last
// that it does, and unmade.
p4reduce_engine *engine_make(const char *switch_address, const char *local_address);
bool engine_open_network(p4reduce_engine *engine, const p4reduce_membership *membership,
                         const p4reduce_options *options, p4reduce_error *error); // its worker and link
bool engine_check_sockets(const p4reduce_options *options, p4reduce_error *error); // open ones, each once
bool engine_start(p4reduce_engine *engine, void *(*run)(void *), const char *name, p4reduce_error *error);
void engine_stop(p4reduce_engine *engine);
void engine_destroy(p4reduce_engine *engine);

// One with a worker and a link, that has no thread yet. NULL on error.
p4reduce_engine *engine_prepare(const p4reduce_membership *membership, const p4reduce_options *options,
                                p4reduce_error *error);

// Under the lock: why no operations are taken any more; its status is P4REDUCE_OK while they are.
static inline const p4reduce_error *engine_failure(const p4reduce_engine *engine) {
    return engine->failure.status != P4REDUCE_OK ? &engine->failure : &engine->outside;
}

// By the driver: whether none of the operations under way has begun.
static inline bool engine_oldest_is_held_back(const p4reduce_engine *engine) {
    return engine->oldest != NULL && engine->oldest == engine->holding.held_back;
}

static inline void operation_push(struct operation_queue *queue, p4reduce_operation *operation) {
    operation->next = NULL;
    *(queue->last ? &queue->last->next : &queue->first) = operation;
    queue->last = operation;
}

// NULL if there is none.
static inline p4reduce_operation *operation_pop(struct operation_queue *queue) {
    p4reduce_operation *operation = queue->first;
    if (operation != NULL && (queue->first = operation->next) == NULL)
        queue->last = NULL;
    return operation;
}

#endif
