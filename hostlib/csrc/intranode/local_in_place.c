// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"
#include "intranode/calls.h"
#include "intranode/local.h"

#include <string.h>
#include <time.h>

// A rank takes PIECES_AT_ONCE pieces at once if each rank then has at least LEAST_SHARES such shares. Smaller
// shares balance the load better.
enum { PIECES_AT_ONCE = 4, LEAST_SHARES = 16 };
// If an operation fails while others may write to this rank's tensor, and the kernel refuses to revoke the region: the
// longest time to wait until they have stopped.
static const double WRITERS_TIMEOUT_S = 30;

void in_place_export(struct local *local) {
    const struct p4reduce_request *request = &local->task->request;
    const size_t bytes = request->count * local->task->numbers.value_bytes;
    local->region = (struct region){.number = 0};
    local->in_place = local->reduces_in_place = false;
    if (!local->node.segment.mappable || local->one_shot || request->count == 0)
        return;
    local->in_place = region_export(request->data, bytes, &local->region) && request->residual == NULL &&
                      !request->read_only && request->zeros == P4REDUCE_ZEROS_SKIPPED;
}

// Finding tensors.

// Returns the address of another rank's tensor in this process; NULL if it lies in no region, or cannot be mapped.
static uint8_t *map_tensor(struct local *local, uint32_t rank, const struct region *region, size_t bytes) {
    if (region->number == 0 || region->offset > region->size || bytes > region->size - region->offset)
        return NULL;
    uint8_t *base = mappings_find(&local->mappings, segment_rank(&local->node.segment, rank)->pid, region, bytes);
    return base != NULL ? base + region->offset : NULL;
}

// Returns whether all ranks have come to the operation, have called the same, and let others write into their tensors.
static bool all_in_place(const struct local *local) {
    const struct call *own = calls_get(&local->node, local->rank, local->node.announced);
    for (uint32_t rank = 0; own != NULL && rank < local->ranks; rank++) {
        const struct call *call = calls_get(&local->node, rank, local->node.announced);
        if (call == NULL || !call->in_place || call->fingerprint != own->fingerprint || call->type != own->type ||
            call->divisor != own->divisor)
            return false;
    }
    return own != NULL;
}

void in_place_find_tensors(struct local *local) {
    const struct task *task = local->task;
    local->uniform = true;
    local->unmappable = false;
    mappings_begin(&local->mappings);
    for (uint32_t rank = 0; rank < local->ranks; rank++) {
        const struct call *call = calls_get(&local->node, rank, local->node.announced);
        local->numbers[rank] = calls_numbers(&local->node, rank, call, task);
        local->uniform &= call->type == task->request.type && call->divisor == task->numbers.divisor;
        const size_t bytes = task->request.count * local->numbers[rank].value_bytes;
        const bool is_mapped = rank != local->rank && !local->one_shot;
        local->mapped[rank] = is_mapped ? map_tensor(local, rank, &call->region, bytes) : NULL;
        local->unmappable |= rank != local->rank && local->mapped[rank] == NULL;
    }
    local->reduces_in_place = local->in_place && all_in_place(local);
}

// Adding up.

// Counts of the blocks that this rank has added: the non-zero ones of each rank, and those non-zero at some rank.
struct added {
    uint64_t blocks[MAX_HOST_RANKS], together;
};

static void reduce(struct local *local, const struct piece *piece, struct added *added) {
    struct source sources[MAX_HOST_RANKS];
    void *tensors[MAX_HOST_RANKS];
    uint8_t agreed[MOST_PIECE_BLOCKS];
    for (uint32_t rank = 0; rank < local->ranks; rank++) {
        uint8_t *exponents = local->scratch + (size_t)rank * MOST_PIECE_BLOCKS;
        tensors[rank] = rank == local->rank ? piece_own_values(local, piece) : piece_mapped_values(local, piece, rank);
        sources[rank] = (struct source){.values = tensors[rank]};
        local_scan_source(local, piece, rank, &sources[rank], exponents);
        added->blocks[rank] += count_nonzero(exponents, piece->blocks);
    }
    added->together += local_agree(local, piece, sources, agreed);
    local_sum(local, piece, sources, agreed, tensors, local->ranks);
}

// Returns how many blocks a rank takes at once.
static uint64_t share_blocks(const struct local *local) {
    const uint64_t large = (uint64_t)PIECES_AT_ONCE * local->piece_blocks;
    return local->task->blocks / local->ranks >= LEAST_SHARES * large ? large : local->piece_blocks;
}

// Reduces a share in small parts: all ranks' values of a part stay in the L1 cache, and its scan prefetches the next
// part.
static void reduce_share(struct local *local, uint64_t first, uint64_t share, struct added *added) {
    const struct task *task = local->task;
    const uint64_t end = min_of(task->blocks, first + share);
    const uint64_t ahead = SCAN_AHEAD / (task->block_size * task->numbers.value_bytes);
    const uint64_t step = ahead > 0 ? min_of(ahead, MOST_PIECE_BLOCKS) : 1;
    for (uint64_t at = first; at < end; at += step) {
        const struct piece part = local_blocks(local, at, min_of(step, end - at));
        reduce(local, &part, added);
    }
}

// Adds this rank's counts to the shared counters. Other ranks have counted blocks of this rank, too.
static void publish_counts(const struct local *local, const struct added *added) {
    for (uint32_t rank = 0; rank < local->ranks; rank++)
        atomic_fetch_add(&segment_rank(&local->node.segment, rank)->added, added->blocks[rank]);
    atomic_fetch_add(&segment_head(&local->node.segment)->added, added->together);
}

// Adds the blocks of this operation to this rank's statistics.
static void update_stats(struct local *local) {
    const uint64_t own = atomic_load(&segment_rank(&local->node.segment, local->rank)->added);
    const uint64_t together = atomic_load(&segment_head(&local->node.segment)->added);
    local->node.stats.blocks_sent += own - local->added;
    local->node.stats.blocks_skipped += local->task->blocks - (own - local->added);
    local->node.stats.blocks_received += together - local->together;
    local->added = own;
    local->together = together;
}

// A rank that cannot map all tensors takes no pieces, and leaves them to the others.
bool in_place_add_up(p4reduce_engine *engine) {
    struct local *local = local_of(engine);
    struct window *head = local_window(local, local->first_window);
    struct added added = {.together = 0};
    const uint64_t share = share_blocks(local);
    if (!local->unmappable)
        atomic_store(&head->adds_in_place, local->first_window + 1);
    for (uint64_t first;
         !local->unmappable && (first = atomic_fetch_add(&head->next_piece, 1) * share) < local->task->blocks;) {
        if (!local_may_continue(engine) || !local_no_rank_failed(engine))
            return false;
        reduce_share(local, first, share, &added);
    }
    publish_counts(local, &added);
    local_arrive(local, GATHERED, local->first_window); // in place, there is nothing left to gather after REDUCED
    local_arrive(local, REDUCED, local->first_window);
    return true;
}

bool in_place_was_added_up(struct local *local) {
    const bool was = atomic_load(&local_window(local, local->first_window)->adds_in_place) == local->first_window + 1;
    if (was)
        update_stats(local);
    return was;
}

// Giving up.

// Takes back this rank's arrival, if not all ranks have arrived yet. Returns whether it did. The compare-and-swap
// decides between this rank and the last one to arrive: either the count becomes full, and others may write to this
// rank's tensor, or this rank withdraws, and the count never becomes full.
static bool withdraw(const struct local *local) {
    _Atomic uint32_t *arrived = &local_window(local, local->first_window)->arrived[SCANNED];
    uint32_t seen = atomic_load(arrived);
    while ((int32_t)(seen - local_expected_arrivals(local, local->first_window)) < 0)
        if (atomic_compare_exchange_weak(arrived, &seen, seen - 1)) {
            atomic_store(&segment_rank(&local->node.segment, local->rank)->completed[SCANNED], local->first_window);
            return true;
        }
    return false;
}

static bool have_all_reduced(const struct local *local) {
    return local_have_all_arrived(local, REDUCED, local->first_window);
}

// Returns whether some rank may still write to this rank's tensor.
static bool may_be_written(const struct local *local) {
    if (!local->in_place || local->next[SCANNED] == 0)
        return false;
    if (!local->reduces_in_place && (withdraw(local) || !all_in_place(local)))
        return false;
    return !have_all_reduced(local);
}

void in_place_revoke(struct local *local, bool well) {
    if (local->region.number == 0)
        return;
    const size_t bytes = local->task->request.count * local->task->numbers.value_bytes;
    if (!well && may_be_written(local) && !region_revoke(&local->region, bytes)) {
        const double until = clock_now() + WRITERS_TIMEOUT_S;
        while (!have_all_reduced(local) && clock_now() < until)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    region_release(&local->region);
    local->region.number = 0;
}
