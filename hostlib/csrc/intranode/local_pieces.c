// SPDX-License-Identifier: Apache-2.0
#include "intranode/local.h"

#include <stdlib.h>
#include <string.h>

enum {
    VALUE_BYTES = 4,
    WORD_BYTES = 4,
    ONE_SHOT_BYTES = 32 << 10, // the largest tensor of a one-shot operation
    LARGE_BYTES = 8 << 20,     // from this size on, little of a tensor is in a core's own caches
    WINDOW_BYTES = 8 << 20,
    MOST_PIECE_BYTES = 64 << 10,
    LEAST_PIECE_BYTES = 16 << 10,
    CACHED_BYTES = 512 << 10,    // all ranks' values of a piece, so that they fit into a core's cache
    MOST_COPIES_BYTES = 2 << 20, // of a rank in a window
    COPIES_BYTES = 16 << 20,     // of all ranks in a window
};

size_t local_lay_out(struct local *local) {
    size_t piece_bytes = MOST_PIECE_BYTES, copies_bytes = MOST_COPIES_BYTES;
    while (piece_bytes > LEAST_PIECE_BYTES && local->ranks * piece_bytes > CACHED_BYTES)
        piece_bytes /= 2;
    while (copies_bytes > piece_bytes && local->ranks * copies_bytes > COPIES_BYTES)
        copies_bytes /= 2;
    local->piece_bytes = piece_bytes;
    local->pieces = (unsigned)(WINDOW_BYTES / piece_bytes);
    local->copied_pieces = (unsigned)(copies_bytes / piece_bytes);
    local->windows = (struct buffers){
        .count = WINDOWS,
        .ranks = local->ranks,
        .copiers = local->ranks,
        .head_bytes = sizeof(struct window) + local->ranks * sizeof *((struct window *)NULL)->ranks,
        .exponents_bytes = (size_t)local->pieces * MOST_PIECE_BLOCKS,
        .sums_bytes = WINDOW_BYTES,
        .copies_bytes = copies_bytes,
    };
    return buffers_lay_out(&local->windows);
}

void local_begin(struct local *local, struct task *task) {
    local->task = task;
    local->collected = 0;
    local->retries = false;
    local->postponed_count = 0;
    const size_t most = local->piece_bytes / ((size_t)task->block_size * VALUE_BYTES);
    local->piece_blocks = (unsigned)min_of(most, MOST_PIECE_BLOCKS);
    local->one_shot = task->blocks <= local->piece_blocks && task->request.count * VALUE_BYTES <= ONE_SHOT_BYTES;
}

// Copies a rank's values. Returns false if they cannot be read.
static bool read_values(const struct local *local, const struct piece *piece, uint32_t rank, uint8_t *to) {
    const size_t value_bytes = local->numbers[rank].value_bytes, bytes = piece->values * value_bytes;
    const uint8_t *mapped = piece_mapped_values(local, piece, rank);
    if (mapped != NULL)
        memcpy(to, mapped, bytes);
    const struct call *call = segment_call(&local->node.segment, rank, local->node.announced);
    return mapped != NULL ||
           (local->node.segment.readable &&
            segment_read(&local->node.segment, rank, call->data + value_bytes * piece->first_value, to, bytes));
}

struct piece local_blocks(const struct local *local, uint64_t first, uint64_t blocks) {
    const struct task *task = local->task;
    struct piece piece = {.first_block = first, .first_value = first * task->block_size};
    piece.blocks = (unsigned)min_of(task->blocks - first, blocks);
    piece.values = min_of(task->request.count - piece.first_value, (size_t)piece.blocks * task->block_size);
    return piece;
}

bool local_piece(const struct local *local, uint64_t number, unsigned index, struct piece *piece) {
    const struct task *task = local->task;
    const bool is_retry = number >= local->regular_count;
    const unsigned pieces = is_retry ? local->copied_pieces : local->pieces;
    const uint64_t position = (number - (is_retry ? local->regular_count : 0)) * pieces + index;
    if (index >= pieces)
        return false;
    if (is_retry ? position >= local->postponed_count : position * local->piece_blocks >= task->blocks)
        return false;
    const struct postponed *postponed = is_retry ? &local->postponed[position] : NULL;
    const uint64_t first = is_retry ? postponed->first_block : position * local->piece_blocks;
    *piece = local_blocks(local, first, local->piece_blocks);
    piece->window = local->first_window + number;
    piece->index = index;
    piece->postponed = postponed;
    return true;
}

// Postponing pieces that some rank cannot read. If the reason is that a rank has ended, all wait afterwards, and fail.

static void postpone(const struct local *local, const struct piece *piece) {
    atomic_store(&local_window(local, piece->window)->postponed, piece->window + 1);
}

static bool append_postponed(struct local *local, struct postponed postponed) {
    if (local->postponed_count == local->postponed_room) {
        const size_t room = local->postponed_room ? 2 * local->postponed_room : MOST_PIECES;
        struct postponed *all = realloc(local->postponed, room * sizeof *all);
        if (all == NULL)
            return false;
        local->postponed = all;
        local->postponed_room = room;
    }
    local->postponed[local->postponed_count++] = postponed;
    return true;
}

bool local_collect(struct local *local, uint64_t windows) {
    for (; local->collected < min_of(windows, local->regular_count); local->collected++) {
        const uint64_t window = local->first_window + local->collected;
        const struct window *head = local_window(local, window);
        struct piece piece;
        for (unsigned index = 0;
             atomic_load(&head->postponed) == window + 1 && local_piece(local, local->collected, index, &piece);
             index++) {
            const bool unread = atomic_load(&head->unread[index]) == window + 1;
            const struct postponed postponed = {piece.first_block, unread, head->owners[index]};
            if ((unread || head->kinds[index] == POSTPONED) && !append_postponed(local, postponed))
                return false;
        }
    }
    return true;
}

// Adding up.

void local_scan_source(const struct local *local, const struct piece *piece, uint32_t rank, struct source *source,
                       uint8_t *exponents) {
    source->exponents = exponents;
    source->has_negative_zeros =
        numbers_scan(&local->numbers[rank], source->values, piece->values, local->task->block_size, exponents);
}

// Finds each rank's values of a piece. Returns false if some cannot be read.
static bool find_values(struct local *local, const struct piece *piece, struct source *sources) {
    for (uint32_t rank = 0; rank < local->ranks; rank++) {
        const uint8_t content = *piece_content(local, piece, rank);
        struct source *source = &sources[rank];
        *source = (struct source){.packed = content == COPIED};
        if (content == EMPTY)
            continue;
        source->exponents = piece_exponents(local, piece, rank);
        if (content == COPIED) {
            source->values = buffers_copies(&local->windows, piece->window, rank) +
                             local_window(local, piece->window)->ranks[rank].copy_offsets[piece->index];
        } else if (rank == local->rank) {
            source->values = piece_own_values(local, piece);
        } else if (local->mapped[rank] != NULL) {
            source->values = piece_mapped_values(local, piece, rank);
        } else {
            uint8_t *scratch = local->scratch + rank * local->piece_bytes;
            if (!read_values(local, piece, rank, scratch))
                return false;
            source->values = scratch;
        }
        if (content == UNSCANNED)
            local_scan_source(local, piece, rank, source, piece_exponents(local, piece, rank));
    }
    return true;
}

unsigned local_agree(const struct local *local, const struct piece *piece, const struct source *sources,
                     uint8_t *agreed) {
    memset(agreed, BLOCK_ZERO, piece->blocks);
    for (uint32_t rank = 0; rank < local->ranks; rank++) {
        const uint8_t *exponents = sources[rank].exponents;
        for (unsigned block = 0; exponents != NULL && block < piece->blocks; block++)
            agreed[block] = agreed[block] > exponents[block] ? agreed[block] : exponents[block];
    }
    return count_nonzero(agreed, piece->blocks);
}

// Adds all ranks' values of a block that is non-zero at some rank, to words. If a source is packed, blocks must be
// added in ascending order.
static void sum_block(struct local *local, const struct piece *piece, struct source *sources, unsigned block,
                      unsigned exponent, uint8_t *sums) {
    const size_t count = piece_values_in(local, piece, block), first = (size_t)block * local->task->block_size;
    const size_t words = numbers_words(&local->task->numbers, count);
    uint8_t *addend = local->words;
    bool begun = false;
    for (uint32_t rank = 0; rank < local->ranks; rank++) {
        struct source *source = &sources[rank];
        if (source->exponents == NULL || source->exponents[block] == BLOCK_ZERO)
            continue;
        const struct numbers *numbers = &local->numbers[rank];
        const size_t block_bytes = local->task->block_size * numbers->value_bytes;
        const uint8_t *values = source->values + (source->packed ? 0 : block * block_bytes);
        if (source->packed)
            source->values += block_bytes;
        numbers_quantise(numbers, values, count, exponent, piece->first_value + first, begun ? addend : sums);
        if (begun)
            numbers->kernels->add(addend, words, sums);
        begun = true;
    }
}

// Writes the residual of this rank's values.
static void write_residual(struct local *local, const struct piece *piece, const uint8_t *agreed) {
    const struct task *task = local->task;
    const uint8_t *exponents = piece_exponents(local, piece, local->rank);
    if (task->request.residual == NULL || *piece_content(local, piece, local->rank) == EMPTY)
        return;
    for (unsigned block = 0; block < piece->blocks; block++)
        if (exponents[block] != BLOCK_ZERO)
            task_quantise(task, piece->first_block + block, agreed[block], local->words);
}

static size_t word_bytes_a_block(const struct local *local) {
    return local->task->block_size / local->task->numbers.per_word * WORD_BYTES;
}

// Prefetches the non-zero blocks of the tensor for writing. They are no longer in the cache, and too far apart for the
// hardware prefetcher. `edges`: only the cache lines that blocks share with their neighbours.
static void prefetch_blocks(const struct piece *piece, const uint8_t *agreed, const uint8_t *values, size_t block_bytes,
                            bool edges) {
    const size_t step = edges ? block_bytes : LINE_BYTES, end = edges ? block_bytes + 1 : block_bytes;
    for (unsigned block = 0; (block = next_nonzero(agreed, block, piece->blocks)) < piece->blocks; block++)
        for (size_t i = 0; i < end; i += step)
            __builtin_prefetch(values + block * block_bytes + i, 1);
}

// Writes the sums into this rank's tensor. `clear`: write blocks of zeros, too, because they may hold a -0.
static void write_values(struct local *local, const struct piece *piece, const uint8_t *agreed, const uint8_t *words,
                         bool clear) {
    const struct numbers *numbers = &local->task->numbers;
    const size_t block_bytes = local->task->block_size * numbers->value_bytes, stride = word_bytes_a_block(local);
    const bool large = local->task->request.count * numbers->value_bytes >= LARGE_BYTES;
    const bool to_memory = large && numbers_can_dequantise_to_memory(numbers);
    uint8_t *to = piece_own_values(local, piece);
    if (!to_memory || (uintptr_t)to % LINE_BYTES != 0)
        prefetch_blocks(piece, agreed, to, block_bytes, to_memory);
    for (unsigned block = 0; block < piece->blocks; block++) {
        if (!clear && (block = next_nonzero(agreed, block, piece->blocks)) == piece->blocks)
            break;
        const size_t count = piece_values_in(local, piece, block);
        if (agreed[block] == BLOCK_ZERO) {
            memset(to + block * block_bytes, 0, count * numbers->value_bytes);
            continue;
        }
        if (to_memory)
            numbers_dequantise_to_memory(numbers, words, count, agreed[block], to + block * block_bytes);
        else
            numbers_dequantise(numbers, words, count, agreed[block], to + block * block_bytes);
        words += stride;
    }
    if (to_memory)
        numbers->kernels->settle();
}

static void sum_to_words(struct local *local, const struct piece *piece, struct source *sources, const uint8_t *agreed,
                         uint8_t *words) {
    const size_t stride = word_bytes_a_block(local);
    for (unsigned block = 0; (block = next_nonzero(agreed, block, piece->blocks)) < piece->blocks; block++) {
        sum_block(local, piece, sources, block, agreed[block], words);
        words += stride;
    }
}

// Collects the addresses of ranks' values that are not all zero. Returns how many these ranks are, or 0 if some have
// packed copies.
static size_t unpacked_values(const struct local *local, const struct source *sources, const void **values) {
    size_t count = 0;
    for (uint32_t rank = 0; rank < local->ranks; rank++) {
        if (sources[rank].exponents == NULL)
            continue;
        if (sources[rank].packed)
            return 0;
        values[count++] = sources[rank].values;
    }
    return count;
}

void local_sum(struct local *local, const struct piece *piece, struct source *sources, const uint8_t *agreed,
               void *const *to, size_t tensor_count) {
    const struct numbers *numbers = &local->task->numbers;
    uint8_t *sums = local->words + word_bytes_a_block(local);
    const void *values[MAX_HOST_RANKS];
    const size_t unpacked = unpacked_values(local, sources, values);
    for (unsigned block = 0; block < piece->blocks; block++) {
        const size_t count = piece_values_in(local, piece, block), first = (size_t)block * local->task->block_size;
        const size_t at = first * numbers->value_bytes, bytes = count * numbers->value_bytes;
        if (agreed[block] == BLOCK_ZERO) {
            for (size_t i = 0; i < tensor_count; i++)
                if (sources[tensor_count == 1 ? local->rank : i].has_negative_zeros)
                    memset((uint8_t *)to[i] + at, 0, bytes);
        } else if (unpacked == 0 ||
                   !numbers_sum(numbers, values, unpacked, first, first + count, agreed[block], to, tensor_count)) {
            sum_block(local, piece, sources, block, agreed[block], sums);
            numbers_dequantise(numbers, sums, count, agreed[block], (uint8_t *)to[0] + at);
            for (size_t i = 1; i < tensor_count; i++)
                memcpy((uint8_t *)to[i] + at, (uint8_t *)to[0] + at, bytes);
        }
    }
}

static bool any_in_tensor(const struct local *local, const struct piece *piece) {
    for (uint32_t rank = 0; rank < local->ranks; rank++)
        if (*piece_content(local, piece, rank) >= IN_TENSOR)
            return true;
    return false;
}

static void count_blocks(struct local *local, const struct piece *piece, unsigned received) {
    const bool empty = *piece_content(local, piece, local->rank) == EMPTY;
    const unsigned sent = empty ? 0 : count_nonzero(piece_exponents(local, piece, local->rank), piece->blocks);
    local->node.stats.blocks_sent += sent;
    local->node.stats.blocks_skipped += piece->blocks - sent;
    local->node.stats.blocks_received += received;
}

void local_reduce(struct local *local, const struct piece *piece) {
    struct window *head = local_window(local, piece->window);
    struct source sources[MAX_HOST_RANKS];
    if (piece->postponed != NULL && piece->postponed->given) {
        head->kinds[piece->index] = GIVEN;
        return;
    }
    if (!find_values(local, piece, sources)) {
        head->kinds[piece->index] = POSTPONED;
        postpone(local, piece);
        return;
    }
    if (local->one_shot) {
        uint8_t agreed[MOST_PIECE_BLOCKS];
        local_agree(local, piece, sources, agreed);
        sum_to_words(local, piece, sources, agreed, local->scratch);
        write_residual(local, piece, agreed);
        count_blocks(local, piece, count_nonzero(agreed, piece->blocks));
        if (!local->task->request.read_only)
            write_values(local, piece, agreed, local->scratch, false);
        return;
    }
    uint8_t *agreed = piece_agreed(local, piece);
    const unsigned nonzero = local_agree(local, piece, sources, agreed);
    // Dense sums stay in this rank's tensor, if others can read them there and want them in the same form.
    const bool may_be_whole = piece_is_readable(local, piece) && local->uniform && !local->task->request.read_only;
    head->owners[piece->index] = (uint8_t)local->rank;
    if (nonzero == 0) {
        head->kinds[piece->index] = NOTHING;
    } else if (may_be_whole && (any_in_tensor(local, piece) || 2 * nonzero > piece->blocks)) {
        write_residual(local, piece, agreed);
        void *const own = piece_own_values(local, piece);
        local_sum(local, piece, sources, agreed, &own, 1);
        head->kinds[piece->index] = WHOLE;
    } else {
        sum_to_words(local, piece, sources, agreed, piece_sums(local, piece));
        head->kinds[piece->index] = WORDS;
    }
}

// Taking the sums.

// Copies the sums of a piece that its owner has put into the window.
static void copy_given_sums(struct local *local, const struct piece *piece) {
    if (!local->task->request.read_only && piece->postponed->owner != local->rank)
        memcpy(piece_own_values(local, piece), piece_sums(local, piece),
               piece->values * local->task->numbers.value_bytes);
}

void local_gather(struct local *local, const struct piece *piece) {
    if (local->one_shot)
        return;
    struct window *head = local_window(local, piece->window);
    const struct p4reduce_request *request = &local->task->request;
    const uint8_t kind = head->kinds[piece->index], owner = head->owners[piece->index];
    const uint8_t *agreed = piece_agreed(local, piece);
    if (kind == GIVEN)
        copy_given_sums(local, piece);
    if (kind == GIVEN || kind == POSTPONED)
        return;
    count_blocks(local, piece, kind == NOTHING ? 0 : count_nonzero(agreed, piece->blocks));
    const bool clear = *piece_content(local, piece, local->rank) == UNSCANNED;
    if ((kind == NOTHING && !clear) || (kind == WHOLE && owner == local->rank))
        return;
    write_residual(local, piece, agreed);
    if (request->read_only)
        return;
    if (kind != WHOLE) {
        write_values(local, piece, agreed, piece_sums(local, piece), clear);
        return;
    }
    if (read_values(local, piece, owner, piece_own_values(local, piece)))
        return;
    atomic_store(&head->unread[piece->index], piece->window + 1);
    postpone(local, piece);
}
