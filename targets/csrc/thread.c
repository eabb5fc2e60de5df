// SPDX-License-Identifier: Apache-2.0
#include "thread.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EVENTS 64

static void emit(struct context *context, unsigned port, const uint8_t *frame, size_t length) {
    struct thread *thread = (struct thread *)(void *)context;
    switch_emit(thread->native, context->plane, thread, port, frame, length);
}

struct thread *thread_create(struct native_switch *native, unsigned index) {
    struct thread *thread = calloc(1, sizeof *thread);
    if (thread == NULL)
        return NULL;
    thread->native = native;
    thread->index = index;
    thread->alone = native->thread_count == 1;
    thread->results.thread = thread->batches.thread = index;
    thread->results.ports = native->ports;
    thread->results.replies = &thread->batches;
    thread->poll = epoll_create1(EPOLL_CLOEXEC);
    thread->receiver = receiver_create();
    struct epoll_event stop = {.events = EPOLLIN, .data.ptr = NULL};
    if (!context_create(&thread->context, index + 1) || thread->poll < 0 || thread->receiver == NULL ||
        epoll_ctl(thread->poll, EPOLL_CTL_ADD, native->stop, &stop) != 0) {
        thread_destroy(thread);
        return NULL;
    }
    thread->context.emit = emit;
    return thread;
}

void thread_destroy(struct thread *thread) {
    if (thread->started)
        pthread_join(thread->handle, NULL);
    if (thread->poll >= 0)
        close(thread->poll);
    receiver_destroy(thread->receiver);
    results_destroy(&thread->results);
    batches_destroy(&thread->batches);
    context_destroy(&thread->context);
    free(thread);
}

int thread_watch(struct thread *thread, struct port *port) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = port};
    int descriptor = port->kind->descriptor(port, thread->index);
    return epoll_ctl(thread->poll, EPOLL_CTL_ADD, descriptor, &event) == 0 ? 0 : -errno;
}

// Locks the switch for a batch of packets: until `end`, the plane does not change.
static void begin(struct thread *thread) {
    struct native_switch *native = thread->native;
    pthread_rwlock_rdlock(&native->lock);
    struct plane *plane = native->plane;
    if (plane == NULL) {
        thread->context.plane = NULL;
        return;
    }
    if (plane != thread->context.plane || plane->version != thread->version) {
        results_forget(&thread->results);
        thread->version = plane->version;
    }
    thread->context.plane = plane;
    thread->context.counters = &plane->counters[thread->context.number];
}

static void end(struct thread *thread) {
    results_flush(&thread->results);
    batches_flush(&thread->batches);
    for (unsigned at = 0; at < thread->native->port_count; at++) {
        struct port *port = thread->native->opened[at];
        if (port->kind->flush != NULL)
            port->kind->flush(port, thread);
    }
    pthread_rwlock_unlock(&thread->native->lock);
}

static void *run(void *argument) {
    struct thread *thread = argument;
    struct epoll_event events[EVENTS];
    while (!atomic_load(&thread->native->stopping)) {
        int count = epoll_wait(thread->poll, events, EVENTS, -1);
        begin(thread);
        for (int at = 0; at < count; at++) {
            struct port *port = events[at].data.ptr;
            if (port != NULL)
                port_count(&port->received, port->kind->receive(port, thread));
        }
        end(thread);
    }
    return NULL;
}

int thread_start(struct thread *thread) {
    int error = pthread_create(&thread->handle, NULL, run, thread);
    thread->started = error == 0;
    return -error;
}
