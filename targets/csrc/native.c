// SPDX-License-Identifier: Apache-2.0
#include "native.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "pipeline.h"
#include "ports_ethernet.h"
#include "ports_udp.h"
#include "thread.h"

static bool create_lock(pthread_rwlock_t *lock) {
    pthread_rwlockattr_t attributes;
    if (pthread_rwlockattr_init(&attributes) != 0)
        return false;
    // Without this, busy threads, which hold the lock for reading most of the time, would keep the controller waiting.
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    bool made = pthread_rwlock_init(lock, &attributes) == 0;
    pthread_rwlockattr_destroy(&attributes);
    return made;
}

struct native_switch *native_open(unsigned threads) {
    struct native_switch *native = calloc(1, sizeof *native);
    if (native == NULL)
        return NULL;
    if (!create_lock(&native->lock)) {
        free(native);
        return NULL;
    }
    native->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bool made = native->stop >= 0;
    made = packet_ins_create(&native->packet_ins) && made;
    made = context_create(&native->caller, 0) && made && threads <= MAX_THREADS;
    native->thread_count = made ? threads : 0;
    for (unsigned thread = 0; thread < native->thread_count; thread++) {
        native->threads[thread] = thread_create(native, thread);
        made = made && native->threads[thread] != NULL;
    }
    if (!made) {
        native_close(native);
        return NULL;
    }
    return native;
}

void native_stop(struct native_switch *native) {
    const uint64_t one = 1;
    atomic_store(&native->stopping, true);
    if (write(native->stop, &one, sizeof one) < 0) {
        // The eventfd's counter is at its limit, so all threads are already woken.
    }
    packet_ins_close(&native->packet_ins);
}

void native_close(struct native_switch *native) {
    if (native->stop >= 0)
        native_stop(native);
    for (unsigned thread = 0; thread < native->thread_count; thread++)
        if (native->threads[thread] != NULL)
            thread_destroy(native->threads[thread]);
    for (unsigned port = 0; port < native->port_count; port++)
        native->opened[port]->kind->close(native->opened[port]);
    if (native->stop >= 0)
        close(native->stop);
    packet_ins_destroy(&native->packet_ins);
    context_destroy(&native->caller);
    free(native->outputs.data);
    pthread_rwlock_destroy(&native->lock);
    free(native);
}

// --- ports -----------------------------------------------------------------------------------------------------------

// The thread of the next port that belongs to a single one.
static unsigned next_thread(const struct native_switch *native) {
    return native->port_count % native->thread_count;
}

static int check_port(const struct native_switch *native, unsigned number) {
    if (native->thread_count == 0 || number == 0 || number >= DROP_PORT)
        return -EINVAL;
    return native->ports[number] != NULL ? -EEXIST : 0;
}

static int add(struct native_switch *native, struct port *port) {
    for (unsigned thread = 0; thread < native->thread_count; thread++) {
        if (port->thread != ALL_THREADS && port->thread != thread)
            continue;
        int error = thread_watch(native->threads[thread], port);
        if (error != 0)
            return error;
    }
    native->ports[port->number] = port;
    native->opened[native->port_count++] = port;
    return 0;
}

int native_add_udp(struct native_switch *native, unsigned port, const uint64_t *ip, uint16_t *udp_port) {
    struct port *made;
    int error = check_port(native, port);
    if (error == 0)
        error = udp_port_open(&made, port, ip_of_words(ip), udp_port, native->thread_count);
    return error != 0 ? error : add(native, made);
}

int native_add_ethernet(struct native_switch *native, unsigned port, const char *interface) {
    struct port *made;
    int error = check_port(native, port);
    if (error == 0)
        error = ethernet_port_open(&made, port, next_thread(native), interface);
    return error != 0 ? error : add(native, made);
}

int native_add_socket(struct native_switch *native, unsigned port, int descriptor) {
    struct port *made;
    int error = check_port(native, port);
    if (error == 0)
        error = socket_port_open(&made, port, next_thread(native), descriptor);
    return error != 0 ? error : add(native, made);
}

int native_port_descriptor(struct native_switch *native, unsigned port) {
    const struct port *found = port < PORTS ? native->ports[port] : NULL;
    if (found == NULL || found->thread == ALL_THREADS)
        return -ENOENT;
    return found->kind->descriptor(found, found->thread);
}

int native_start(struct native_switch *native) {
    for (unsigned thread = 0; thread < native->thread_count; thread++) {
        int error = thread_start(native->threads[thread]);
        if (error != 0)
            return error;
    }
    return 0;
}

int native_port_counts(struct native_switch *native, unsigned port, uint64_t *counts) {
    const struct port *found = port < PORTS ? native->ports[port] : NULL;
    if (found == NULL)
        return -ENOENT;
    counts[0] = atomic_load_explicit(&found->received, memory_order_relaxed);
    counts[1] = atomic_load_explicit(&found->sent, memory_order_relaxed);
    counts[2] = atomic_load_explicit(&found->dropped, memory_order_relaxed);
    return 0;
}

void native_lost_counts(struct native_switch *native, uint64_t *counts) {
    counts[0] = atomic_load_explicit(&native->undeliverable, memory_order_relaxed);
    counts[1] = atomic_load_explicit(&native->packet_ins.lost, memory_order_relaxed);
}

// --- the controller's packets ----------------------------------------------------------------------------------------

static struct native_switch *switch_of_caller(struct context *context) {
    return (struct native_switch *)(void *)((char *)context - offsetof(struct native_switch, caller));
}

static void emit_now(struct context *context, unsigned port, const uint8_t *frame, size_t length) {
    switch_emit(switch_of_caller(context), context->plane, NULL, port, frame, length);
}

// Processes a frame in the caller's thread. The caller holds the lock for writing.
static void process(struct native_switch *native, struct plane *plane, unsigned port, const uint8_t *frame,
                    size_t length) {
    struct context *context = &native->caller;
    context->plane = plane;
    context->counters = &plane->counters[0];
    memcpy(context_frame(context), frame, length);
    pipeline_process(context, port, length);
}

int native_packet_out(struct native_switch *native, const uint8_t *frame, size_t length) {
    if (length > MAX_FRAME)
        return -EMSGSIZE;
    pthread_rwlock_wrlock(&native->lock);
    native->caller.emit = emit_now;
    if (native->plane != NULL)
        process(native, native->plane, native->plane->layout.cpu_port, frame, length);
    pthread_rwlock_unlock(&native->lock);
    return 0;
}

long native_packet_in(struct native_switch *native, uint8_t *frame) {
    return packet_ins_take(&native->packet_ins, frame);
}

// --- a program -------------------------------------------------------------------------------------------------------

long native_program(char *text, size_t size) {
    return program_write(text, size);
}

struct plane *native_plane_create(struct native_switch *native, unsigned lanes, unsigned block_size, unsigned halves,
                                  unsigned cpu_port, unsigned max_growth) {
    (void)native;
    const struct layout layout = {lanes, block_size, halves, cpu_port, max_growth};
    return plane_create(&layout);
}

void native_plane_free(struct native_switch *native, struct plane *plane) {
    if (native != NULL) {
        pthread_rwlock_wrlock(&native->lock);
        if (native->plane == plane)
            native->plane = NULL;
        pthread_rwlock_unlock(&native->lock);
    }
    plane_destroy(plane);
}

void native_run(struct native_switch *native, struct plane *plane) {
    pthread_rwlock_wrlock(&native->lock);
    native->plane = plane;
    pthread_rwlock_unlock(&native->lock);
}

static struct action action_of(unsigned id, const uint64_t *arguments) {
    struct action action = {.id = (enum action_id)id};
    memcpy(action.arguments, arguments, sizeof action.arguments);
    return action;
}

static struct key key_of_words(const uint64_t *words) {
    struct key key;
    memcpy(key.words, words, sizeof key.words);
    return key;
}

int native_insert(struct native_switch *native, struct plane *plane, unsigned table, const uint64_t *key,
                  unsigned action, const uint64_t *arguments) {
    const struct key words = key_of_words(key);
    const struct action call = action_of(action, arguments);
    pthread_rwlock_wrlock(&native->lock);
    int error = table_insert(&plane->tables[table], &words, &call);
    if (error == 0 && table == TABLE_JOBS)
        plane_write_count(plane, &plane->counters[0].jobs[table_find(&plane->tables[table], &words)->number],
                          (const uint64_t[]){0, 0});
    plane->version++;
    pthread_rwlock_unlock(&native->lock);
    return error;
}

int native_modify(struct native_switch *native, struct plane *plane, unsigned table, const uint64_t *key,
                  unsigned action, const uint64_t *arguments) {
    const struct key words = key_of_words(key);
    const struct action call = action_of(action, arguments);
    pthread_rwlock_wrlock(&native->lock);
    int error = table_modify(&plane->tables[table], &words, &call);
    plane->version++;
    pthread_rwlock_unlock(&native->lock);
    return error;
}

int native_delete(struct native_switch *native, struct plane *plane, unsigned table, const uint64_t *key) {
    const struct key words = key_of_words(key);
    pthread_rwlock_wrlock(&native->lock);
    int error = table_delete(&plane->tables[table], &words);
    plane->version++;
    pthread_rwlock_unlock(&native->lock);
    return error;
}

int native_set_miss(struct native_switch *native, struct plane *plane, unsigned table, unsigned action,
                    const uint64_t *arguments) {
    pthread_rwlock_wrlock(&native->lock);
    plane->tables[table].miss = action_of(action, arguments);
    plane->version++;
    pthread_rwlock_unlock(&native->lock);
    return 0;
}

int native_set_group(struct native_switch *native, struct plane *plane, unsigned group, const uint16_t *replicas,
                     size_t count) {
    struct replica *copies = calloc(count + 1, sizeof *copies);
    if (copies == NULL)
        return -ENOMEM;
    for (size_t at = 0; at < count; at++)
        copies[at] = (struct replica){replicas[2 * at], replicas[2 * at + 1]};
    pthread_rwlock_wrlock(&native->lock);
    int error = plane_set_group(plane, group, copies, count);
    pthread_rwlock_unlock(&native->lock);
    free(copies);
    return error;
}

int native_read_counter(struct native_switch *native, struct plane *plane, unsigned counter, unsigned index,
                        uint64_t *count) {
    (void)native;
    const struct count *cell = counters_cell(plane->counters, (enum counter_id)counter, index);
    if (cell == NULL)
        return -ERANGE;
    plane_read_count(plane, cell, count);
    return 0;
}

int native_write_counter(struct native_switch *native, struct plane *plane, unsigned counter, unsigned index,
                         const uint64_t *count) {
    const struct count *cell = counters_cell(plane->counters, (enum counter_id)counter, index);
    if (cell == NULL)
        return -ERANGE;
    pthread_rwlock_wrlock(&native->lock);
    plane_write_count(plane, cell, count);
    pthread_rwlock_unlock(&native->lock);
    return 0;
}

// Returns the cell of a member's counter in the first set, or NULL. The caller holds the lock.
static const struct count *member_cell(const struct plane *plane, const uint64_t *key) {
    const struct key words = key_of_words(key);
    const struct entry *entry = table_find(&plane->tables[TABLE_JOBS], &words);
    return entry != NULL ? &plane->counters[0].jobs[entry->number] : NULL;
}

int native_read_member(struct native_switch *native, struct plane *plane, const uint64_t *key, uint64_t *count) {
    pthread_rwlock_rdlock(&native->lock);
    const struct count *cell = member_cell(plane, key);
    if (cell != NULL)
        plane_read_count(plane, cell, count);
    pthread_rwlock_unlock(&native->lock);
    return cell != NULL ? 0 : -ENOENT;
}

int native_write_member(struct native_switch *native, struct plane *plane, const uint64_t *key, const uint64_t *count) {
    pthread_rwlock_wrlock(&native->lock);
    const struct count *cell = member_cell(plane, key);
    if (cell != NULL)
        plane_write_count(plane, cell, count);
    pthread_rwlock_unlock(&native->lock);
    return cell != NULL ? 0 : -ENOENT;
}

int native_limit_hellos(struct native_switch *native, struct plane *plane, unsigned port, const uint64_t *limit) {
    if (port >= PORTS || (limit != NULL && (limit[0] > METER_LIMIT || limit[1] > METER_LIMIT)))
        return -ERANGE;
    pthread_rwlock_wrlock(&native->lock);
    struct meter *meter = &plane->hellos[port];
    if (limit == NULL)
        meter->configured = false;
    else
        meter_configure(meter, limit[0], limit[1], plane->now != 0 ? plane->now : meter_clock());
    pthread_rwlock_unlock(&native->lock);
    return 0;
}

void native_set_time(struct native_switch *native, struct plane *plane, uint64_t now) {
    pthread_rwlock_wrlock(&native->lock);
    plane->now = now;
    pthread_rwlock_unlock(&native->lock);
}

// --- frames without ports
// -------------------------------------------------------------------------------------------------

static void keep_output(struct context *context, unsigned port, const uint8_t *frame, size_t length) {
    struct outputs *outputs = &switch_of_caller(context)->outputs;
    const uint32_t head[] = {port, (uint32_t)length};
    size_t size = outputs->size + sizeof head + length;
    if (size > outputs->capacity) {
        uint8_t *data = realloc(outputs->data, 2 * size);
        if (data == NULL) {
            outputs->overflow = true;
            return;
        }
        outputs->data = data;
        outputs->capacity = 2 * size;
    }
    memcpy(outputs->data + outputs->size, head, sizeof head);
    memcpy(outputs->data + outputs->size + sizeof head, frame, length);
    outputs->size = size;
}

long native_process(struct native_switch *native, struct plane *plane, unsigned port, const uint8_t *frame,
                    size_t length, const uint8_t **outputs) {
    if (length > MAX_FRAME || port >= PORTS)
        return -EMSGSIZE;
    pthread_rwlock_wrlock(&native->lock);
    native->caller.emit = keep_output;
    native->outputs.size = 0;
    native->outputs.overflow = false;
    process(native, plane, port, frame, length);
    long size = native->outputs.overflow ? -ENOMEM : (long)native->outputs.size;
    *outputs = native->outputs.data;
    pthread_rwlock_unlock(&native->lock);
    return size;
}
