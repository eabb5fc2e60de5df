// SPDX-License-Identifier: Apache-2.0
#include "intranode/local_in_place.h"

#include "base/clock.h"
#include "base/structures.h"
#include "intranode/local_calls.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { PIECES_AT_ONCE = 4, SHARES = 16 };
static const double PATIENCE_S = 30; // with ranks that write, where the kernel lets nothing else be done

void in_place_lend(struct local *local) {
    const struct p4reduce_request *request = &local->task->request;
    const size_t bytes = request->count * local->task->numbers.value_bytes;
    local->region = (struct region){.number = 0};
    local->in_place = local->scanned = local->under_way = local->unmappable = false;
    if (!local->segment.mappable || local->by_all || request->count == 0)
        return;
    local->in_place = region_lend(request->data, bytes, &local->region) && request->residual == NULL &&
                      !request->read_only && request->zeros == P4REDUCE_ZEROS_SKIPPED;
}

// Adding up.

// So many blocks from number `first` on, or as many as are left of the tensor.
static struct piece part_of(const struct local *local, uint64_t first, uint64_t blocks) {
    const struct task *task = local->task;
    struct piece part = {.first_block = first, .blocks = (unsigned)smaller(task->blocks - first, blocks)};
    part.first_value = first * task->block_size;
    part.values = smaller(task->request.count - part.first_value, (size_t)part.blocks * task->block_size);
    return part;
}

// What this rank has added up: blocks that are not zero, of each rank and of all together.
struct added {
    uint64_t blocks[MAX_RANKS], together;
};

// Of one piece: where the ranks' values are, and what is known of them.
struct side {
    void *values[MAX_RANKS];
    const uint8_t *exponents[MAX_RANKS];
    bool negative_zeros[MAX_RANKS];
};

static void scan(struct local *local, const struct piece *piece, struct side *side, struct added *added) {
    const struct task *task = local->task;
    for (uint32_t rank = 0; rank < local->segment.ranks; rank++) {
        uint8_t *exponents = local->exponents + (size_t)rank * MOST_PIECE_BLOCKS;
        side->values[rank] = rank == local->segment.rank ? piece_own_values(local, piece)
                                                         : piece_mapped_values(local, piece, rank);
        side->exponents[rank] = exponents;
        side->negative_zeros[rank] =
            numbers_scan(&task->numbers, side->values[rank], piece->values, task->block_size, exponents);
        added->blocks[rank] += count_nonzero(exponents, piece->blocks);
    }
}

// The words of a block, then as the values of one rank, which all others get.
static void sum_by_steps(struct local *local, const struct piece *piece, const struct side *side, size_t begin,
                         size_t count, unsigned exponent) {
    const size_t value_bytes = local->task->numbers.value_bytes, block = begin / local->task->block_size;
    uint8_t *more = local->words, *sums = local->words + MOST_BLOCK_BYTES;
    bool begun = false;
    for (uint32_t rank = 0; rank < local->segment.ranks; rank++) {
        if (side->exponents[rank][block] == BLOCK_ZERO)
            continue;
        const struct numbers *numbers = &local->numbers[rank];
        numbers_quantise(numbers, (const uint8_t *)side->values[rank] + begin * value_bytes, count, exponent,
                         piece->first_value + begin, begun ? more : sums);
        if (begun)
            numbers->kernels->add(more, numbers_words(numbers, count), sums);
        begun = true;
    }
    const uint8_t *first = (uint8_t *)side->values[0] + begin * value_bytes;
    for (uint32_t rank = 0; rank < local->segment.ranks; rank++) {
        uint8_t *to = (uint8_t *)side->values[rank] + begin * value_bytes;
        if (rank == 0)
            numbers_dequantise(&local->task->numbers, sums, count, exponent, to);
        else
            memcpy(to, first, count * value_bytes);
    }
}

static void sum(struct local *local, const struct piece *piece, const struct side *side, unsigned block,
                unsigned exponent) {
    const struct task *task = local->task;
    const uint32_t ranks = local->segment.ranks;
    const size_t begin = (size_t)block * task->block_size, count = piece_values_in(local, piece, block);
    if (!numbers_sum(&task->numbers, (const void *const *)side->values, ranks, begin, begin + count, exponent,
                     side->values, ranks))
        sum_by_steps(local, piece, side, begin, count, exponent);
}

// Of ranks that have a -0 there: a block that is zero at all becomes +0.
static void clear(const struct local *local, const struct piece *piece, const struct side *side, unsigned block) {
    const size_t value_bytes = local->task->numbers.value_bytes;
    for (uint32_t rank = 0; rank < local->segment.ranks; rank++)
        if (side->negative_zeros[rank])
            memset((uint8_t *)side->values[rank] + (size_t)block * local->task->block_size * value_bytes, 0,
                   piece_values_in(local, piece, block) * value_bytes);
}

static void reduce(struct local *local, const struct piece *piece, struct added *added) {
    struct side side;
    scan(local, piece, &side, added);
    for (unsigned block = 0; block < piece->blocks; block++) {
        unsigned agreed = BLOCK_ZERO;
        for (uint32_t rank = 0; rank < local->segment.ranks; rank++)
            agreed = agreed > side.exponents[rank][block] ? agreed : side.exponents[rank][block];
        if (agreed == BLOCK_ZERO) {
            clear(local, piece, &side, block);
        } else {
            sum(local, piece, &side, block, agreed);
            added->together++;
        }
    }
}

// Blocks that a rank takes at once: a piece, or several where there are many for each rank.
static uint64_t share_of(const struct local *local) {
    const uint64_t large = (uint64_t)PIECES_AT_ONCE * local->piece_blocks;
    return local->task->blocks / local->segment.ranks >= SHARES * large ? large : local->piece_blocks;
}

// In parts that all ranks' values of stay in a processor's nearest cache, and whose scan asks for the next ones'.
static void reduce_piece(struct local *local, uint64_t first, struct added *added) {
    const struct task *task = local->task;
    const uint64_t end = smaller(task->blocks, first + local->share_blocks);
    const uint64_t ahead = SCAN_AHEAD / (task->block_size * task->numbers.value_bytes);
    const uint64_t step = ahead > 0 ? smaller(ahead, MOST_PIECE_BLOCKS) : 1;
    for (uint64_t at = first; at < end; at += step) {
        const struct piece part = part_of(local, at, smaller(step, end - at));
        reduce(local, &part, added);
    }
}

// Counts what was added up: what of this rank's is not zero, others have seen, too.
static void tell_added(const struct local *local, const struct added *added) {
    for (uint32_t rank = 0; rank < local->segment.ranks; rank++)
        atomic_fetch_add(&segment_rank(&local->segment, rank)->added, added->blocks[rank]);
    atomic_fetch_add(&segment_head(&local->segment)->added, added->together);
}

static void count(struct local *local) {
    const uint64_t own = atomic_load(&segment_rank(&local->segment, local->segment.rank)->added);
    const uint64_t together = atomic_load(&segment_head(&local->segment)->added);
    local->stats.blocks_sent += own - local->added;
    local->stats.blocks_skipped += local->task->blocks - (own - local->added);
    local->stats.blocks_received += together - local->together;
    local->added = own;
    local->together = together;
}

// In what order.

bool in_place_meet(p4reduce_engine *engine) {
    struct local *local = engine->local;
    const uint64_t window = local->windows;
    if (window >= WINDOWS && !local_await(engine, GATHERED, window - WINDOWS))
        return false;
    // For ranks that do not add up in place.
    memset(segment_contents(&local->segment, window, local->segment.rank), UNSCANNED, local->segment.pieces);
    local->scanned = true;
    local_arrive(local, SCANNED, window);
    if (!local_await(engine, SCANNED, window))
        return false;
    if (calls_differ(local, local->operations))
        return local_goes_on(engine);
    calls_take(local, local->operations);
    local->under_way = calls_in_place(local, local->operations);
    struct read_failure failure = {.error = 0};
    for (uint32_t rank = 0; local->under_way && rank < local->segment.ranks; rank++) {
        if (local->unmapped[rank] == ESRCH)
            failure = (struct read_failure){.rank = rank, .error = ESRCH};
        local->unmappable |= local->unmapped[rank] != 0;
    }
    return local_could_read(engine, &failure);
}

// Nobody could map all tensors: this goes on as if they lay in no region that others write to.
static void give_up_in_place(struct local *local) {
    local->windows++;
    local->under_way = local->in_place = local->scanned = false;
}

bool in_place_carry(p4reduce_engine *engine) {
    struct local *local = engine->local;
    struct window_head *head = segment_window(&local->segment, local->windows);
    _Atomic uint32_t *next = &head->next_piece;
    struct added added = {.together = 0};
    local->share_blocks = share_of(local);
    if (!local->unmappable)
        atomic_store(&head->adds_in_place, local->windows + 1);
    // Who cannot map all tensors leaves the pieces to the others.
    for (uint64_t first;
         !local->unmappable && (first = (uint64_t)atomic_fetch_add(next, 1) * local->share_blocks) < local->task->blocks;) {
        if (!local_goes_on(engine) || !local_have_all_done(engine))
            return false;
        reduce_piece(local, first, &added);
    }
    tell_added(local, &added);
    local_arrive(local, REDUCED, local->windows);
    local_arrive(local, GATHERED, local->windows);
    if (!local_await(engine, REDUCED, local->windows) || !local_have_all_done(engine))
        return false;
    local->stats.local_fallbacks += local->unmappable;
    if (atomic_load(&head->adds_in_place) != local->windows + 1) {
        give_up_in_place(local);
        return true;
    }
    local->windows++;
    count(local);
    return true;
}

// Giving up.

// Whether this rank has said that it has come before all others had, and takes that back: so they never have.
static bool withdraw(const struct local *local) {
    _Atomic uint32_t *arrived = &segment_window(&local->segment, local->windows)->arrived[SCANNED];
    uint32_t seen = atomic_load(arrived);
    while ((int32_t)(seen - local_all_of(local, local->windows)) < 0)
        if (atomic_compare_exchange_weak(arrived, &seen, seen - 1)) {
            atomic_store(&segment_rank(&local->segment, local->segment.rank)->through[SCANNED], local->windows);
            return true;
        }
    return false;
}

static bool have_all_reduced(const struct local *local) {
    return local_are_through(local, REDUCED, local->windows);
}

// Whether some rank may still write to this one's tensor.
static bool may_be_written(const struct local *local) {
    if (!local->in_place || !local->scanned)
        return false;
    if (!local->under_way && (withdraw(local) || !calls_in_place(local, local->operations)))
        return false;
    return !have_all_reduced(local);
}

void in_place_take_back(struct local *local, bool well) {
    if (local->region.number == 0)
        return;
    const size_t bytes = local->task->request.count * local->task->numbers.value_bytes;
    if (!well && may_be_written(local) && !region_take_back(&local->region, bytes)) {
        const double until = clock_now() + PATIENCE_S;
        while (!have_all_reduced(local) && clock_now() < until)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    region_return(&local->region);
    local->region.number = 0;
}
