// SPDX-License-Identifier: Apache-2.0
#include "packet_ins.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool packet_ins_create(struct packet_ins *queue) {
    queue->ring = malloc(PACKET_INS_CAPACITY);
    return queue->ring != NULL && pthread_mutex_init(&queue->lock, NULL) == 0 &&
           pthread_cond_init(&queue->changed, NULL) == 0;
}

void packet_ins_destroy(struct packet_ins *queue) {
    if (queue->ring != NULL) {
        pthread_cond_destroy(&queue->changed);
        pthread_mutex_destroy(&queue->lock);
    }
    free(queue->ring);
    queue->ring = NULL;
}

static void write_ring(struct packet_ins *queue, const void *data, size_t length) {
    size_t at = queue->head % PACKET_INS_CAPACITY;
    size_t first = length < PACKET_INS_CAPACITY - at ? length : PACKET_INS_CAPACITY - at;
    memcpy(queue->ring + at, data, first);
    memcpy(queue->ring, (const uint8_t *)data + first, length - first);
    queue->head += length;
}

static void read_ring(struct packet_ins *queue, void *data, size_t length) {
    size_t at = queue->tail % PACKET_INS_CAPACITY;
    size_t first = length < PACKET_INS_CAPACITY - at ? length : PACKET_INS_CAPACITY - at;
    memcpy(data, queue->ring + at, first);
    memcpy((uint8_t *)data + first, queue->ring, length - first);
    queue->tail += length;
}

void packet_ins_put(struct packet_ins *queue, const uint8_t *frame, size_t length) {
    pthread_mutex_lock(&queue->lock);
    if (queue->closed || queue->head - queue->tail + sizeof length + length > PACKET_INS_CAPACITY) {
        atomic_fetch_add_explicit(&queue->lost, 1, memory_order_relaxed);
    } else {
        write_ring(queue, &length, sizeof length);
        write_ring(queue, frame, length);
        pthread_cond_signal(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
}

long packet_ins_take(struct packet_ins *queue, uint8_t *frame) {
    long result = -ESHUTDOWN;
    pthread_mutex_lock(&queue->lock);
    while (queue->head == queue->tail && !queue->closed)
        pthread_cond_wait(&queue->changed, &queue->lock);
    if (queue->head != queue->tail) {
        size_t length;
        read_ring(queue, &length, sizeof length);
        read_ring(queue, frame, length);
        result = (long)length;
    }
    pthread_mutex_unlock(&queue->lock);
    return result;
}

void packet_ins_close(struct packet_ins *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->closed = true;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}
