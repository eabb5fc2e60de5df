// SPDX-License-Identifier: Apache-2.0
#include "shm/host_memory.h"

#include "base/membership.h"

#include <sys/mman.h>
#include <unistd.h>

enum { PAGE_BYTES = 65536 }; // the largest that processors have, so that all can give memory back

#define VALUES_BYTES ((size_t)PART_VALUES * 4)

static size_t in_pages(size_t size) {
    return (size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

// Parts of a place, in this order: head and calls, agreed exponents, ranks' exponents, sums, ranks' values.
static size_t agreed_at(const struct host_memory *memory) {
    return in_pages(sizeof(struct place_head) + memory->count * sizeof(struct host_call));
}

static size_t exponents_at(const struct host_memory *memory) {
    return agreed_at(memory) + memory->exponents_bytes;
}

static size_t sums_at(const struct host_memory *memory) {
    return exponents_at(memory) + memory->count * memory->exponents_bytes;
}

static size_t values_at(const struct host_memory *memory) {
    return sums_at(memory) + VALUES_BYTES;
}

// The leader's values stay in its tensor.
static size_t place_bytes(const struct host_memory *memory) {
    return values_at(memory) + (memory->count - 1) * VALUES_BYTES;
}

static size_t places_at(const struct host_memory *memory) {
    return in_pages(sizeof(struct host_head) + memory->count * sizeof(struct host_rank) + CACHE_LINE);
}

static void lay_out(struct host_memory *memory, const p4reduce_membership *membership) {
    *memory = (struct host_memory){.base = NULL};
    for (uint32_t rank = 0; rank < membership->world_size; rank++)
        if (membership_beside(membership, rank, membership->rank)) {
            if (rank == membership->rank)
                memory->index = memory->count;
            memory->ranks[memory->count++] = (uint8_t)rank;
        }
    memory->exponents_bytes = in_pages(PART_VALUES / membership->block_size + 1);
    memory->bytes = places_at(memory) + PLACES * place_bytes(memory);
}

bool host_memory_open(struct host_memory *memory, const p4reduce_membership *membership, const char *name,
                      double timeout, int *sockets, p4reduce_error *error) {
    lay_out(memory, membership);
    if (memory->count == 1)
        return true;
    const struct meeting meeting = {
        .name = name,
        .timeout = timeout,
        .index = memory->index,
        .count = memory->count,
        .ranks = memory->ranks,
        .layout = HOST_LAYOUT,
        .bytes = memory->bytes,
    };
    const int descriptor = meeting_hold(&meeting, sockets, error);
    if (descriptor < 0)
        return false;
    void *base = mmap(NULL, memory->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
    close(descriptor);
    if (base == MAP_FAILED)
        return meeting_refused(error, "memory");
    memory->base = base;
    return true;
}

void host_memory_close(struct host_memory *memory) {
    if (memory->base != NULL)
        munmap(memory->base, memory->bytes);
    memory->base = NULL;
}

struct host_head *host_head(const struct host_memory *memory) {
    return (struct host_head *)memory->base;
}

struct host_rank *host_rank(const struct host_memory *memory, uint32_t index) {
    const size_t head = (sizeof(struct host_head) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    return (struct host_rank *)(memory->base + head) + index;
}

static uint8_t *place_at(const struct host_memory *memory, uint64_t part) {
    return memory->base + places_at(memory) + part % PLACES * place_bytes(memory);
}

struct place_head *host_place(const struct host_memory *memory, uint64_t part) {
    return (struct place_head *)place_at(memory, part);
}

struct host_call *host_call(const struct host_memory *memory, uint64_t part, uint32_t index) {
    return (struct host_call *)(host_place(memory, part) + 1) + index;
}

uint8_t *host_exponents(const struct host_memory *memory, uint64_t part, uint32_t index) {
    return place_at(memory, part) + exponents_at(memory) + index * memory->exponents_bytes;
}

uint8_t *host_values(const struct host_memory *memory, uint64_t part, uint32_t index) {
    return place_at(memory, part) + values_at(memory) + (index - 1) * VALUES_BYTES;
}

uint8_t *host_agreed(const struct host_memory *memory, uint64_t part) {
    return place_at(memory, part) + agreed_at(memory);
}

uint8_t *host_sums(const struct host_memory *memory, uint64_t part) {
    return place_at(memory, part) + sums_at(memory);
}

void host_memory_spare(const struct host_memory *memory) {
    for (uint64_t part = 0; memory->base != NULL && part < PLACES; part++)
        madvise(memory->index == 0 ? host_sums(memory, part) : host_values(memory, part, memory->index), VALUES_BYTES,
                MADV_REMOVE);
}
