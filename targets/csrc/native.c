// SPDX-License-Identifier: Apache-2.0
#include "native.h"

#include <errno.h>
#include <stdlib.h>

#include "switch.h"

static bool create_lock(pthread_rwlock_t *lock) {
    pthread_rwlockattr_t attributes;
    if (pthread_rwlockattr_init(&attributes) != 0)
        return false;
    // Else busy threads would keep the controller waiting.
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    bool made = pthread_rwlock_init(lock, &attributes) == 0;
    pthread_rwlockattr_destroy(&attributes);
    return made;
}

struct native_switch *native_open(unsigned threads) {
    (void)threads;
    struct native_switch *native = calloc(1, sizeof *native);
    if (native == NULL)
        return NULL;
    if (!create_lock(&native->lock)) {
        free(native);
        return NULL;
    }
    if (!context_create(&native->caller, 0)) {
        native_close(native);
        return NULL;
    }
    return native;
}

void native_close(struct native_switch *native) {
    context_destroy(&native->caller);
    free(native->outputs.data);
    pthread_rwlock_destroy(&native->lock);
    free(native);
}

// --- a program -------------------------------------------------------------------------------------------------------

struct plane *native_plane_create(struct native_switch *native, unsigned lanes, unsigned block_size, unsigned halves,
                                  unsigned cpu_port, unsigned max_growth) {
    (void)native;
    const struct layout layout = {lanes, block_size, halves, cpu_port, max_growth};
    return plane_create(&layout);
}

void native_plane_free(struct native_switch *native, struct plane *plane) {
    pthread_rwlock_wrlock(&native->lock);
    if (native->plane == plane)
        native->plane = NULL;
    pthread_rwlock_unlock(&native->lock);
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

static struct key key_of(const uint64_t *words) {
    return (struct key){{words[0], words[1]}};
}

int native_insert(struct native_switch *native, struct plane *plane, unsigned table, const uint64_t *key,
                  unsigned action, const uint64_t *arguments) {
    const struct key words = key_of(key);
    const struct action call = action_of(action, arguments);
    pthread_rwlock_wrlock(&native->lock);
    int error = table_insert(&plane->tables[table], &words, &call);
    plane->version++;
    pthread_rwlock_unlock(&native->lock);
    return error;
}

int native_modify(struct native_switch *native, struct plane *plane, unsigned table, const uint64_t *key,
                  unsigned action, const uint64_t *arguments) {
    const struct key words = key_of(key);
    const struct action call = action_of(action, arguments);
    pthread_rwlock_wrlock(&native->lock);
    int error = table_modify(&plane->tables[table], &words, &call);
    plane->version++;
    pthread_rwlock_unlock(&native->lock);
    return error;
}

int native_delete(struct native_switch *native, struct plane *plane, unsigned table, const uint64_t *key) {
    const struct key words = key_of(key);
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
    count[0] = count[1] = 0;
    for (unsigned set = 0; set < COUNTER_SETS; set++) {
        const struct count *cell = counters_cell(&plane->counters[set], (enum counter_id)counter, index);
        if (cell == NULL)
            return -ERANGE;
        count[0] += atomic_load_explicit(&cell->packets, memory_order_relaxed);
        count[1] += atomic_load_explicit(&cell->bytes, memory_order_relaxed);
    }
    return 0;
}

int native_write_counter(struct native_switch *native, struct plane *plane, unsigned counter, unsigned index,
                         const uint64_t *count) {
    int error = 0;
    pthread_rwlock_wrlock(&native->lock);
    for (unsigned set = 0; set < COUNTER_SETS; set++) {
        struct count *cell = counters_cell(&plane->counters[set], (enum counter_id)counter, index);
        if (cell == NULL) {
            error = -ERANGE;
            break;
        }
        atomic_store_explicit(&cell->packets, set == 0 ? count[0] : 0, memory_order_relaxed);
        atomic_store_explicit(&cell->bytes, set == 0 ? count[1] : 0, memory_order_relaxed);
    }
    pthread_rwlock_unlock(&native->lock);
    return error;
}

// --- a frame by hand -------------------------------------------------------------------------------------------------

static void keep_output(struct context *context, unsigned port, const uint8_t *frame, size_t length) {
    struct native_switch *native = (struct native_switch *)((char *)context - offsetof(struct native_switch, caller));
    struct outputs *outputs = &native->outputs;
    const uint32_t head[] = {port, (uint32_t)length};
    size_t size = outputs->size + sizeof head + length;
    if (size > outputs->room) {
        uint8_t *data = realloc(outputs->data, 2 * size);
        if (data == NULL) {
            outputs->overflow = true;
            return;
        }
        outputs->data = data;
        outputs->room = 2 * size;
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
    struct context *context = &native->caller;
    context->plane = plane;
    context->counters = &plane->counters[0];
    context->emit = keep_output;
    native->outputs.size = 0;
    native->outputs.overflow = false;
    memcpy(context_frame(context), frame, length);
    pipeline_process(context, port, length);
    long size = native->outputs.overflow ? -ENOMEM : (long)native->outputs.size;
    *outputs = native->outputs.data;
    pthread_rwlock_unlock(&native->lock);
    return size;
}
