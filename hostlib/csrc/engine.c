// SPDX-License-Identifier: Apache-2.0
#include "engine.h"

#include "structures.h"

#include <fenv.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    LOST_GROUPS = 8,     // packets of super-packets that seem to be lost, before any has arrived
    SEND_AT = 61,        // packets: a super-packet of the usual size
    MOST_WET_TURNS = 64, // so that a flood of packets cannot keep the engine from its timers
    GATHERED = 8,        // answers that one wake-up is to find, where they come singly
    GATHER_SHARE = 4,    // of a round trip, the part that waiting for them may take
};
static const double DEFAULT_TIMEOUT_S = 30, SILENCE_S = 3, LEAST_PAUSE_S = 50e-6; // no more than the kernel rounds to

static double clock_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static struct timespec as_timespec(double seconds) {
    double whole = floor(seconds);
    return (struct timespec){(time_t)whole, (long)((seconds - whole) * 1e9)};
}

static void push(struct operation_queue *queue, p4reduce_operation *operation) {
    operation->next = NULL;
    *(queue->last ? &queue->last->next : &queue->first) = operation;
    queue->last = operation;
}

static p4reduce_operation *pop(struct operation_queue *queue) {
    p4reduce_operation *operation = queue->first;
    if (operation != NULL && (queue->first = operation->next) == NULL)
        queue->last = NULL;
    return operation;
}

// Under the lock: makes the thread look for news.
static void wake(p4reduce_engine *engine) {
    if (engine->wake < 0)
        return; // closed
    atomic_store(&engine->news, true);
    const uint64_t one = 1;
    ssize_t written = write(engine->wake, &one, sizeof one);
    (void)written; // it fails only where the thread is to wake up anyway
}

// Under the lock: the first failure stays.
static void set_failure(p4reduce_engine *engine, const p4reduce_error *error) {
    if (engine->failure.status == P4REDUCE_OK)
        engine->failure = *error;
}

static bool in_thread(const p4reduce_engine *engine) {
    return pthread_equal(pthread_self(), engine->thread);
}

// For the engine's thread.

void engine_describe_wait(const p4reduce_engine *engine, double now, char *text, size_t room) {
    struct quiet quiet = {engine->switch_address, engine->heard_at, engine->link->trouble};
    if (engine->link->quietest != NULL)
        quiet = engine->link->quietest(engine->link);
    const double since = quiet.heard_at > engine->oldest_since ? quiet.heard_at : engine->oldest_since;
    const double silence = now - since;
    if (quiet.heard_at < engine->oldest_since || silence > SILENCE_S) {
        char hint[64] = "";
        if (quiet.trouble)
            snprintf(hint, sizeof hint, " (%s)", strerror(quiet.trouble));
        snprintf(text, room,
                 "the switch at %s has not answered for %.1f s%s: is it running, does the network lead there from %s, "
                 "does it still know the job?",
                 quiet.address, silence, hint, engine->local_address);
        return;
    }
    char ranks[5 * MAX_RANKS + 8] = "results";
    uint32_t awaited[8];
    if (p4reduce_worker_awaited(engine->worker, awaited)) {
        size_t used = 0;
        unsigned count = 0;
        for (unsigned rank = 0; rank < MAX_RANKS; rank++)
            if (awaited[rank / 32] >> rank % 32 & 1)
                used += (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%u", count++ ? ", " : "ranks ", rank);
        if (count == 1) // "rank 3"
            memmove(ranks + 4, ranks + 5, used - 4);
    }
    snprintf(text, room, "waiting for %s; last answer of the switch at %s: %.1f s ago", ranks, quiet.address, silence);
}

// From within the worker: the operation has its result, or an error that is the worker's failure too.
static void ended(void *context, const p4reduce_error *error) {
    p4reduce_operation *operation = context;
    p4reduce_engine *engine = operation->engine;
    const double now = clock_now();
    *(operation->older ? &operation->older->newer : &engine->oldest) = operation->newer;
    *(operation->newer ? &operation->newer->older : &engine->newest) = operation->older;
    if (operation->older == NULL)
        engine->oldest_since = now;
    if (engine->oldest == NULL)
        engine->seconds += now - engine->busy_since;

    void (*on_end)(void *, const p4reduce_error *) = operation->on_end;
    void *own_context = operation->context;
    p4reduce_error copy;
    if (error != NULL)
        copy = *error;
    pthread_mutex_lock(&engine->lock);
    if (error != NULL) {
        set_failure(engine, error); // before its caller learns of it, who may call again at once
        operation->error = *error;
    }
    operation->ended = true;
    if (operation->collected)
        push(&engine->told, operation);
    const bool forgotten = !operation->collected && !operation->held;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    if (forgotten)
        free(operation);
    if (on_end != NULL)
        on_end(own_context, error != NULL ? &copy : NULL);
}

static void begin(p4reduce_engine *engine, p4reduce_operation *operation, double now) {
    if (engine->oldest == NULL) {
        engine->oldest_since = engine->busy_since = now;
        if (engine->link->expect != NULL)
            engine->link->expect(engine->link, operation->task->blocks / engine->membership.lanes);
    }
    operation->newer = NULL;
    operation->older = engine->newest;
    *(engine->newest ? &engine->newest->newer : &engine->oldest) = operation;
    engine->newest = operation;
    struct task *task = operation->task;
    operation->task = NULL;
    worker_submit(engine->worker, task, now);
}

static void take_snapshot(p4reduce_engine *engine, double now) {
    struct snapshot *snapshot = &engine->snapshot;
    snapshot->stats = engine->worker->stats;
    snapshot->stats.seconds = engine->seconds;
    engine_describe_wait(engine, now, snapshot->progress, sizeof snapshot->progress);
    engine->link->describe(engine->link, snapshot->link, sizeof snapshot->link);
}

// What other threads want of this one.
static void take_news(p4reduce_engine *engine, double now) {
    uint64_t count;
    ssize_t got = read(engine->wake, &count, sizeof count);
    (void)got;
    atomic_store(&engine->news, false);
    pthread_mutex_lock(&engine->lock);
    if (engine->outside.status != P4REDUCE_OK)
        set_failure(engine, &engine->outside);
    const p4reduce_error failure = engine->failure;
    engine->must_stop = engine->closing;
    if (failure.status != P4REDUCE_OK) {
        pthread_mutex_unlock(&engine->lock);
        worker_fail(engine->worker, &failure);
        pthread_mutex_lock(&engine->lock);
    }
    p4reduce_operation *operation;
    while ((operation = pop(&engine->inbox)) != NULL) {
        pthread_mutex_unlock(&engine->lock);
        begin(engine, operation, now);
        pthread_mutex_lock(&engine->lock);
    }
    if (engine->answered != engine->asked) {
        take_snapshot(engine, now);
        engine->answered = engine->asked;
        pthread_cond_broadcast(&engine->changed);
    }
    pthread_mutex_unlock(&engine->lock);
}

static void fail_here(p4reduce_engine *engine, const p4reduce_error *error) {
    pthread_mutex_lock(&engine->lock);
    set_failure(engine, error);
    const p4reduce_error failure = engine->failure;
    pthread_mutex_unlock(&engine->lock);
    worker_fail(engine->worker, &failure);
}

static void check_time_limit(p4reduce_engine *engine, double now) {
    const p4reduce_operation *oldest = engine->oldest;
    if (oldest == NULL || now - engine->oldest_since < oldest->timeout)
        return;
    char wait[TEXT_BYTES];
    engine_describe_wait(engine, now, wait, sizeof wait);
    p4reduce_error error;
    error_fill(&error, P4REDUCE_TIMEOUT, "%s did not end within %g s: %s", oldest->name, oldest->timeout, wait);
    p4reduce_worker_awaited(engine->worker, error.awaited);
    fail_here(engine, &error);
}

// Where a slot's packet comes among those to be sent: the aggregators' in turn, of each the longest first.
static unsigned rank_of(const p4reduce_engine *engine, uint32_t slot) {
    const p4reduce_worker *worker = engine->worker;
    const unsigned shorter = worker->layout.lanes - slot_lanes(&worker->slots[slot]);
    const uint32_t aggregators = engine->link->aggregators;
    return aggregators == 0 ? shorter : slot % aggregators * (worker->layout.lanes + 1) + shorter;
}

// Sends what the worker has for the switches, in such an order that packets of equal length to one are neighbours.
static void send_packets(p4reduce_engine *engine) {
    p4reduce_worker *worker = engine->worker;
    uint32_t count, starts[MAX_AGGREGATORS * (MAX_LANES + 1) + 1] = {0};
    uint32_t *outbox = worker_outbox(worker, &count);
    if (count == 0)
        return;
    const unsigned ranks = (engine->link->aggregators ? engine->link->aggregators : 1) * (worker->layout.lanes + 1);
    bool again = false;
    for (uint32_t i = 0; i < count; i++)
        starts[rank_of(engine, outbox[i]) + 1]++;
    for (unsigned i = 1; i < ranks; i++)
        starts[i] += starts[i - 1];
    for (uint32_t i = 0; i < count; i++) {
        struct slot *slot = &worker->slots[outbox[i]];
        const uint32_t place = starts[rank_of(engine, outbox[i])]++;
        engine->sorted[place] = outbox[i];
        engine->payloads[place] = (struct iovec){slot->payload, slot->length};
    }
    memcpy(outbox, engine->sorted, count * sizeof *outbox);
    // A software switch may see a super-packet as one huge frame, which it drops: where interfaces are virtual and do
    // not cut it up. So until one is known to arrive, packets are sent again singly; and if only that helps, all are.
    if (!worker->groups_arrive)
        for (uint32_t i = 0; i < count && !again; i++)
            again = worker->slots[outbox[i]].transmissions > 1;
    engine->link->singly = !worker->groups_arrive && (again || worker->groups_lost >= LOST_GROUPS);
    const uint32_t sent = engine->link->send(engine->link, engine->payloads, count, engine->grouped);
    for (uint32_t i = 0; i < sent; i++) {
        struct slot *slot = &worker->slots[outbox[i]];
        if (slot->transmissions == 1)
            slot->grouped = engine->grouped[i];
    }
    worker_sent(worker, sent);
    if (engine->link->fatal) {
        p4reduce_error error;
        error_fill(&error, P4REDUCE_NETWORK, "a packet of %zu bytes is more than the MTU of the path",
                   engine->payloads[0].iov_len);
        fail_here(engine, &error);
    }
}

// Returns whether the link has nothing more.
static bool receive_packets(p4reduce_engine *engine) {
    for (;;) {
        const double now = clock_now();
        if (engine->link->receive(engine->link, engine->worker, now) == 0)
            return true;
        engine->heard_at = now;
        uint32_t queued;
        worker_outbox(engine->worker, &queued);
        if (queued >= SEND_AT)
            return false;
    }
}

// On a slow link answers come singly, and a wake-up for each costs more than the answer: processors that others compute
// on, and send in small pieces. So where many are on their way, which is when all of a queue is, lets a few gather.
static void let_answers_gather(p4reduce_engine *engine) {
    const double now = clock_now();
    const uint64_t received = engine->worker->stats.packets_received;
    if (engine->oldest == NULL)
        engine->gap = 0;
    else if (received > engine->counted)
        engine->gap += ((now - engine->counted_at) / (double)(received - engine->counted) - engine->gap) / 8;
    if (engine->oldest == NULL || received > engine->counted) {
        engine->counted = received;
        engine->counted_at = now;
    }
    const double wanted = GATHERED * engine->gap;
    const double pause = fmin(wanted, p4reduce_worker_deadline(engine->worker) - now);
    if (pause < LEAST_PAUSE_S || GATHER_SHARE * wanted > engine->worker->timer.smoothed || engine->link->full)
        return;
    struct pollfd news = {.fd = engine->wake, .events = POLLIN};
    const struct timespec patience = as_timespec(pause);
    ppoll(&news, 1, &patience, NULL);
}

static void wait_for_work(p4reduce_engine *engine) {
    struct pollfd descriptors[] = {
        {.fd = engine->link->socket, .events = (short)(engine->link->full ? POLLIN | POLLOUT : POLLIN)},
        {.fd = engine->wake, .events = POLLIN},
    };
    double due = p4reduce_worker_deadline(engine->worker);
    if (engine->oldest != NULL)
        due = fmin(due, engine->oldest_since + engine->oldest->timeout);
    struct timespec patience;
    if (!isinf(due))
        patience = as_timespec(fmax(0, fmin(due - clock_now(), 3600)));
    if (ppoll(descriptors, 2, isinf(due) ? NULL : &patience, NULL) > 0 && descriptors[0].revents & POLLERR) {
        // Reading the error clears it; a ring is read without asking the kernel, which could tell it otherwise.
        int error = 0;
        socklen_t size = sizeof error;
        if (getsockopt(engine->link->socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error != 0)
            engine->link->trouble = error;
    }
}

static void turn(p4reduce_engine *engine) {
    const bool dry = receive_packets(engine);
    const double now = clock_now();
    if (atomic_load(&engine->news))
        take_news(engine, now);
    // What has arrived needs not be sent again, so the timers come after it.
    engine->wet_turns = dry ? 0 : engine->wet_turns + 1;
    if (dry || engine->wet_turns > MOST_WET_TURNS) {
        p4reduce_worker_tick(engine->worker, now);
        check_time_limit(engine, now);
    }
    send_packets(engine);
    if (engine->worker->failure.status != P4REDUCE_OK)
        fail_here(engine, &engine->worker->failure);
    if (dry && !engine->must_stop) {
        let_answers_gather(engine);
        wait_for_work(engine);
    }
}

static void *run(void *context) {
    p4reduce_engine *engine = context;
    fesetenv(FE_DFL_ENV); // as the numbers need it, whatever the thread that made this one has set
    while (!engine->must_stop)
        turn(engine);
    // The failure is set, so nothing was added to the inbox after the last look into it.
    take_news(engine, clock_now());
    pthread_mutex_lock(&engine->lock);
    take_snapshot(engine, clock_now());
    engine->answered = engine->asked;
    engine->stopped = true;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

// For any thread.

// Under the lock.
static const p4reduce_error *failure_of(const p4reduce_engine *engine) {
    return engine->failure.status != P4REDUCE_OK ? &engine->failure : &engine->outside;
}

p4reduce_status p4reduce_submit(p4reduce_engine *engine, const p4reduce_request *request, p4reduce_operation **handle,
                                p4reduce_error *error) {
    p4reduce_error refusal;
    struct task *task = task_new(&engine->membership, request, &refusal);
    if (task == NULL)
        return error_out(error, &refusal);
    p4reduce_operation *operation = calloc(1, sizeof *operation);
    if (operation == NULL) {
        task_free(task);
        return error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an operation");
    }
    const p4reduce_request *taken = &task->request;
    operation->engine = engine;
    operation->task = task;
    operation->timeout = taken->timeout > 0 ? taken->timeout : DEFAULT_TIMEOUT_S;
    operation->on_end = taken->on_end;
    operation->context = taken->context;
    operation->held = handle != NULL;
    operation->collected = handle == NULL && taken->on_end == NULL;
    if (taken->name != NULL)
        snprintf(operation->name, sizeof operation->name, "%s", taken->name);
    else
        snprintf(operation->name, sizeof operation->name, "allreduce (%s) of %" PRIu64 " %s", task->reduce_op,
                 taken->count, task->dtype);
    task->request.name = NULL;
    task->request.on_end = ended;
    task->request.context = operation;

    pthread_mutex_lock(&engine->lock);
    if (failure_of(engine)->status != P4REDUCE_OK) {
        p4reduce_status status = error_out(error, failure_of(engine));
        pthread_mutex_unlock(&engine->lock);
        task_free(task);
        free(operation);
        return status;
    }
    push(&engine->inbox, operation);
    if (handle != NULL)
        *handle = operation;
    wake(engine);
    pthread_mutex_unlock(&engine->lock);
    return P4REDUCE_OK;
}

// Under the lock: waits until something has changed, or `deadline` (infinite for none) is over. False when it is.
static bool wait_for_change(p4reduce_engine *engine, double deadline) {
    if (isinf(deadline))
        return pthread_cond_wait(&engine->changed, &engine->lock) == 0;
    if (clock_now() >= deadline)
        return false;
    const struct timespec time = as_timespec(deadline);
    return pthread_cond_timedwait(&engine->changed, &engine->lock, &time) == 0;
}

static double deadline_of(double timeout) {
    return timeout < 0 ? (double)INFINITY : clock_now() + timeout;
}

p4reduce_status p4reduce_wait(p4reduce_operation *operation, double timeout, p4reduce_error *error) {
    p4reduce_engine *engine = operation->engine;
    const double deadline = deadline_of(timeout);
    pthread_mutex_lock(&engine->lock);
    while (!operation->ended && wait_for_change(engine, deadline))
        ;
    p4reduce_status status;
    if (operation->ended)
        status = error_out(error, &operation->error);
    else
        status = error_tell(error, P4REDUCE_TIMEOUT, "%s", "");
    pthread_mutex_unlock(&engine->lock);
    return status;
}

void p4reduce_release(p4reduce_operation *operation) {
    p4reduce_engine *engine = operation->engine;
    pthread_mutex_lock(&engine->lock);
    operation->held = false;
    const bool last = operation->ended;
    pthread_mutex_unlock(&engine->lock);
    if (last)
        free(operation);
}

p4reduce_status p4reduce_allreduce(p4reduce_engine *engine, const p4reduce_request *request, p4reduce_error *error) {
    p4reduce_operation *operation;
    p4reduce_status status = p4reduce_submit(engine, request, &operation, error);
    if (status == P4REDUCE_OK) {
        status = p4reduce_wait(operation, -1, error);
        p4reduce_release(operation);
    }
    return status;
}

void *p4reduce_next_ended(p4reduce_engine *engine, double timeout, p4reduce_error *error) {
    const double deadline = deadline_of(timeout);
    void *context = NULL;
    pthread_mutex_lock(&engine->lock);
    while (engine->told.first == NULL && !engine->stopped && wait_for_change(engine, deadline))
        ;
    p4reduce_operation *operation = pop(&engine->told);
    if (operation != NULL) {
        context = operation->context;
        error_out(error, &operation->error);
        free(operation);
    } else {
        error_tell(error, engine->stopped ? P4REDUCE_CLOSED : P4REDUCE_TIMEOUT, "%s", "");
    }
    pthread_mutex_unlock(&engine->lock);
    return context;
}

static void fail_with(p4reduce_engine *engine, const p4reduce_error *error, bool close) {
    pthread_mutex_lock(&engine->lock);
    if (engine->outside.status == P4REDUCE_OK)
        engine->outside = *error;
    engine->closing |= close;
    wake(engine);
    pthread_mutex_unlock(&engine->lock);
}

void p4reduce_fail(p4reduce_engine *engine, const char *message) {
    p4reduce_error error;
    error_fill(&error, P4REDUCE_FAILED, "%s", message);
    fail_with(engine, &error, false);
}

p4reduce_status p4reduce_failure(p4reduce_engine *engine, p4reduce_error *error) {
    pthread_mutex_lock(&engine->lock);
    p4reduce_status status = error_out(error, failure_of(engine));
    pthread_mutex_unlock(&engine->lock);
    return status;
}

// What the engine's thread knows at this moment; once it has stopped, what it knew last.
static struct snapshot ask(p4reduce_engine *engine) {
    pthread_mutex_lock(&engine->lock);
    if (in_thread(engine)) {
        take_snapshot(engine, clock_now());
    } else if (!engine->stopped) {
        const unsigned number = ++engine->asked;
        wake(engine);
        while ((int)(engine->answered - number) < 0 && !engine->stopped)
            wait_for_change(engine, (double)INFINITY);
    }
    struct snapshot snapshot = engine->snapshot;
    pthread_mutex_unlock(&engine->lock);
    return snapshot;
}

void p4reduce_progress(p4reduce_engine *engine, char *text, size_t room) {
    snprintf(text, room, "%s", ask(engine).progress);
}

void p4reduce_describe(p4reduce_engine *engine, char *text, size_t room) {
    snprintf(text, room, "%s", ask(engine).link);
}

void p4reduce_get_stats(p4reduce_engine *engine, p4reduce_stats *stats) {
    const struct snapshot snapshot = ask(engine);
    structure_out(stats, &snapshot.stats, sizeof snapshot.stats);
}

void p4reduce_close(p4reduce_engine *engine) {
    p4reduce_error error;
    error_fill(&error, P4REDUCE_CLOSED, "the engine is closed");
    fail_with(engine, &error, true);
    pthread_mutex_lock(&engine->lock);
    while (!engine->stopped)
        wait_for_change(engine, (double)INFINITY);
    const bool join = !engine->joined;
    engine->joined = true;
    pthread_mutex_unlock(&engine->lock);
    if (!join)
        return;
    pthread_join(engine->thread, NULL);
    pthread_mutex_lock(&engine->lock);
    engine->link->free(engine->link); // the socket is the caller's again
    engine->link = NULL;
    close(engine->wake);
    engine->wake = -1;
    pthread_mutex_unlock(&engine->lock);
}

// Making and unmaking one.

static void destroy(p4reduce_engine *engine) {
    p4reduce_operation *operation;
    while ((operation = pop(&engine->told)) != NULL)
        free(operation);
    if (engine->link != NULL)
        engine->link->free(engine->link);
    p4reduce_worker_free(engine->worker);
    if (engine->wake >= 0)
        close(engine->wake);
    free(engine->payloads);
    free(engine->sorted);
    free(engine->grouped);
    pthread_cond_destroy(&engine->changed);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

void p4reduce_free(p4reduce_engine *engine) {
    if (engine == NULL)
        return;
    p4reduce_close(engine);
    destroy(engine);
}

static struct link *open_dealt(const p4reduce_options *options, p4reduce_error *error) {
    int sockets[MAX_AGGREGATORS] = {options->socket};
    if (options->link != P4REDUCE_LINK_UDP || options->more_count >= MAX_AGGREGATORS) {
        error_tell(error, P4REDUCE_INVALID,
                   "link is %" PRIu32 " with %" PRIu32 " more sockets: accepted are UDP (%d) and at most %d",
                   options->link, options->more_count, P4REDUCE_LINK_UDP, MAX_AGGREGATORS - 1);
        return NULL;
    }
    for (uint32_t i = 0; i < options->more_count; i++)
        sockets[i + 1] = options->more_sockets[i];
    return dealt_open(sockets, options->more_count + 1, error);
}

static struct link *open_link(const p4reduce_options *options, const struct layout *layout, p4reduce_error *error) {
    if (options->more_sockets != NULL && options->more_count > 0)
        return open_dealt(options, error);
    if (options->link == P4REDUCE_LINK_UDP)
        return udp_open(options->socket, error);
    if (options->link == P4REDUCE_LINK_PACKET && options->headers != NULL)
        return packet_socket_open(options->socket, options->headers, layout, error);
    error_tell(error, P4REDUCE_INVALID,
               "link is %" PRIu32 ": accepted are UDP (%d), and PACKET (%d) together with headers", options->link,
               P4REDUCE_LINK_UDP, P4REDUCE_LINK_PACKET);
    return NULL;
}

p4reduce_engine *p4reduce_open(const p4reduce_membership *membership, const p4reduce_options *theirs,
                               p4reduce_error *error) {
    p4reduce_options options;
    if (!structure_in(&options, sizeof options, theirs)) {
        error_tell(error, P4REDUCE_INVALID, "options are not ones that this version of the library understands");
        return NULL;
    }
    p4reduce_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL) {
        error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an engine");
        return NULL;
    }
    engine->failure = engine->outside = (p4reduce_error){.size = sizeof engine->failure, .rank = -1};
    engine->heard_at = -(double)INFINITY;
    pthread_mutex_init(&engine->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&engine->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    engine->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    snprintf(engine->switch_address, sizeof engine->switch_address, "%s",
             options.switch_address != NULL ? options.switch_address : "an unnamed address");
    snprintf(engine->local_address, sizeof engine->local_address, "%s",
             options.local_address != NULL ? options.local_address : "here");

    if (engine->wake < 0) {
        error_tell(error, P4REDUCE_SYSTEM, "no eventfd: errno %d", errno);
        goto failed;
    }
    engine->worker = p4reduce_worker_new(membership, options.timing, error);
    if (engine->worker == NULL)
        goto failed;
    engine->membership = engine->worker->membership;
    engine->link = open_link(&options, &engine->worker->layout, error);
    if (engine->link == NULL)
        goto failed;
    engine->payloads = calloc(engine->membership.slots, sizeof *engine->payloads);
    engine->sorted = calloc(engine->membership.slots, sizeof *engine->sorted);
    engine->grouped = calloc(engine->membership.slots, sizeof *engine->grouped);
    if (engine->payloads == NULL || engine->sorted == NULL || engine->grouped == NULL) {
        error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an engine");
        goto failed;
    }
    // Signals are for the program's own threads.
    sigset_t all, former;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &former);
    const int refused = pthread_create(&engine->thread, NULL, run, engine);
    pthread_sigmask(SIG_SETMASK, &former, NULL);
    if (refused) {
        error_tell(error, P4REDUCE_SYSTEM, "no thread: errno %d", refused);
        goto failed;
    }
    pthread_setname_np(engine->thread, options.thread_name != NULL ? options.thread_name : "p4reduce");
    return engine;

failed:
    destroy(engine);
    return NULL;
}
