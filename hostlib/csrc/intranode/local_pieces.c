// SPDX-License-Identifier: Apache-2.0
#include "intranode/local_pieces.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    VALUE_BYTES = 4,
    WORD_BYTES = 4,
    FEW_BYTES = 32 << 10,
    LARGE_BYTES = 8 << 20, // of a tensor of which a processor's own caches hold little
};

void local_begin(struct local *local, struct task *task) {
    local->task = task;
    local->regular = local->collected = 0;
    local->postponed_count = 0;
    const size_t most = local->segment.piece_bytes / ((size_t)task->block_size * VALUE_BYTES);
    local->piece_blocks = (unsigned)smaller(most, MOST_PIECE_BLOCKS);
    local->by_all = task->blocks <= local->piece_blocks && task->request.count * VALUE_BYTES <= FEW_BYTES;
}

bool local_read(const struct local *local, const struct piece *piece, uint32_t rank, uint8_t *to,
                struct read_failure *failure) {
    const size_t value_bytes = local->numbers[rank].value_bytes;
    const uint8_t *mapped = piece_mapped_values(local, piece, rank);
    failure->rank = rank;
    if (mapped != NULL) {
        memcpy(to, mapped, piece->values * value_bytes);
        return true;
    }
    if (!local->segment.readable) {
        failure->error = local->unmapped[rank];
        return false;
    }
    const struct call *call = &segment_rank(&local->segment, rank)->calls[local->operations % 2];
    failure->error = segment_read(&local->segment, rank, call->data + value_bytes * piece->first_value, to,
                                  piece->values * value_bytes);
    return failure->error == 0;
}

bool local_piece(const struct local *local, uint64_t number, unsigned index, struct piece *piece) {
    const struct task *task = local->task;
    const bool again = number >= local->regular;
    const unsigned pieces = again ? local->segment.copied_pieces : local->segment.pieces;
    const uint64_t place = (number - (again ? local->regular : 0)) * pieces + index;
    if (index >= pieces || (again ? place >= local->postponed_count : place * local->piece_blocks >= task->blocks))
        return false;
    const struct postponed *postponed = again ? &local->postponed[place] : NULL;
    const uint64_t first = again ? postponed->first_block : place * local->piece_blocks;
    *piece = (struct piece){
        .window = local->windows + number, .index = index, .first_block = first, .postponed = postponed};
    piece->blocks = (unsigned)smaller(task->blocks - first, local->piece_blocks);
    piece->first_value = first * task->block_size;
    piece->values = smaller(task->request.count - piece->first_value, (size_t)piece->blocks * task->block_size);
    return true;
}

// Postponing, of pieces that some rank cannot read.

static void postpone(const struct local *local, const struct piece *piece) {
    atomic_store(&segment_window(&local->segment, piece->window)->postponed, piece->window + 1);
}

// Whether it is another rank's memory that the kernel does not let this one read, and not a rank that is gone.
static bool is_unreadable(const struct read_failure *failure) {
    return failure->error != ESRCH;
}

static bool add(struct local *local, struct postponed postponed) {
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

bool local_collect(struct local *local) {
    const uint64_t number = local->collected++, window = local->windows + number;
    const struct window_head *head = segment_window(&local->segment, window);
    if (atomic_load(&head->postponed) != window + 1)
        return true;
    struct piece piece;
    for (unsigned index = 0; local_piece(local, number, index, &piece); index++) {
        const bool unread = atomic_load(&head->unread[index]) == window + 1;
        const struct postponed postponed = {piece.first_block, unread, head->owners[index]};
        if ((unread || head->kinds[index] == POSTPONED) && !add(local, postponed))
            return false;
    }
    return true;
}

// Adding up.

// Where a rank's blocks of a piece are: all, or only those that are not zero, of which `values` is the next.
struct source {
    const uint8_t *values, *exponents; // NULL where all are zero
    size_t block_bytes;
    bool packed;
};

// Of each rank.
static bool find_values(struct local *local, const struct piece *piece, struct source *sources,
                        struct read_failure *failure) {
    const struct segment *segment = &local->segment;
    for (uint32_t rank = 0; rank < segment->ranks; rank++) {
        const struct numbers *numbers = &local->numbers[rank];
        const uint8_t content = *piece_content(local, piece, rank);
        struct source *source = &sources[rank];
        *source = (struct source){.block_bytes = local->task->block_size * numbers->value_bytes};
        if (content == EMPTY)
            continue;
        source->packed = content == COPIED;
        uint8_t *exponents = piece_exponents(local, piece, rank);
        source->exponents = exponents;
        if (content == COPIED) {
            source->values = segment_copies(segment, piece->window, rank) +
                             segment_places(segment, piece->window, rank)[piece->index];
        } else if (rank == segment->rank) {
            source->values = piece_own_values(local, piece);
        } else if (local->mapped[rank] != NULL) {
            source->values = piece_mapped_values(local, piece, rank);
        } else {
            uint8_t *room = local->room + rank * segment->piece_bytes;
            if (!local_read(local, piece, rank, room, failure))
                return false;
            source->values = room;
        }
        if (content == UNSCANNED)
            numbers_scan(numbers, source->values, piece->values, local->task->block_size, exponents);
    }
    return true;
}

// Returns how many blocks are not zero at some rank, and each one's largest exponent.
static unsigned agree(const struct local *local, const struct piece *piece, const struct source *sources,
                      uint8_t *agreed) {
    memset(agreed, BLOCK_ZERO, piece->blocks);
    for (uint32_t rank = 0; rank < local->segment.ranks; rank++) {
        const uint8_t *exponents = sources[rank].exponents;
        for (unsigned block = 0; exponents != NULL && block < piece->blocks; block++)
            agreed[block] = agreed[block] > exponents[block] ? agreed[block] : exponents[block];
    }
    return count_nonzero(agreed, piece->blocks);
}

// Of blocks in ascending order, each that is not zero everywhere once.
static void sum_block(struct local *local, const struct piece *piece, struct source *sources, unsigned block,
                      unsigned exponent, uint8_t *sums) {
    const size_t count = piece_values_in(local, piece, block), first = (size_t)block * local->task->block_size;
    const size_t words = numbers_words(&local->task->numbers, count);
    uint8_t *more = local->words;
    bool begun = false;
    for (uint32_t rank = 0; rank < local->segment.ranks; rank++) {
        struct source *source = &sources[rank];
        if (source->exponents == NULL || source->exponents[block] == BLOCK_ZERO)
            continue;
        const struct numbers *numbers = &local->numbers[rank];
        const uint8_t *values = source->values + (source->packed ? 0 : block * source->block_bytes);
        if (source->packed)
            source->values += source->block_bytes;
        numbers_quantise(numbers, values, count, exponent, piece->first_value + first, begun ? more : sums);
        if (begun)
            numbers->kernels->add(more, words, sums);
        begun = true;
    }
}

// What of this rank's values the wire has no digits for.
static void take_residual(struct local *local, const struct piece *piece, const uint8_t *agreed) {
    const struct task *task = local->task;
    const uint8_t *exponents = piece_exponents(local, piece, local->segment.rank);
    if (task->request.residual == NULL || *piece_content(local, piece, local->segment.rank) == EMPTY)
        return;
    for (unsigned block = 0; block < piece->blocks; block++)
        if (exponents[block] != BLOCK_ZERO)
            task_quantise(task, piece->first_block + block, agreed[block], local->words);
}

static size_t word_bytes_a_block(const struct local *local) {
    return local->task->block_size / local->task->numbers.per_word * WORD_BYTES;
}

// They are long out of the cache, and too far apart for a processor to guess which come next. `edges`: only the lines
// that blocks share with others.
static void prefetch_blocks(const struct piece *piece, const uint8_t *agreed, const uint8_t *values,
                            size_t block_bytes, bool edges) {
    const size_t step = edges ? block_bytes : LINE_BYTES, end = edges ? block_bytes + 1 : block_bytes;
    for (unsigned block = 0; (block = next_nonzero(agreed, block, piece->blocks)) < piece->blocks; block++)
        for (size_t i = 0; i < end; i += step)
            __builtin_prefetch(values + block * block_bytes + i, 1);
}

// To this rank's tensor. Where `clear`, blocks of zeros are written, too, as they may hold a -0.
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

static void sum_to_words(struct local *local, const struct piece *piece, struct source *sources,
                         const uint8_t *agreed, uint8_t *words) {
    const size_t stride = word_bytes_a_block(local);
    for (unsigned block = 0; (block = next_nonzero(agreed, block, piece->blocks)) < piece->blocks; block++) {
        sum_block(local, piece, sources, block, agreed[block], words);
        words += stride;
    }
}

// Where the values are that are not copies; returns of how many ranks, or 0 where some rank has copies.
static size_t plain_values(const struct local *local, const struct source *sources, const void **values) {
    size_t count = 0;
    for (uint32_t rank = 0; rank < local->segment.ranks; rank++) {
        if (sources[rank].exponents == NULL)
            continue;
        if (sources[rank].packed)
            return 0;
        values[count++] = sources[rank].values;
    }
    return count;
}

// Into this rank's tensor, from which the others read them.
static void sum_to_values(struct local *local, const struct piece *piece, struct source *sources,
                          const uint8_t *agreed) {
    const struct numbers *numbers = &local->task->numbers;
    const size_t block_bytes = local->task->block_size * numbers->value_bytes;
    uint8_t *sums = local->words + word_bytes_a_block(local), *to = piece_own_values(local, piece);
    const void *values[MAX_RANKS];
    const size_t plain = plain_values(local, sources, values);
    void *const all = to;
    for (unsigned block = 0; block < piece->blocks; block++, to += block_bytes) {
        const size_t count = piece_values_in(local, piece, block), first = (size_t)block * local->task->block_size;
        if (agreed[block] == BLOCK_ZERO) {
            memset(to, 0, count * numbers->value_bytes);
        } else if (plain == 0 || !numbers_sum(numbers, values, plain, first, first + count, agreed[block], &all, 1)) {
            sum_block(local, piece, sources, block, agreed[block], sums);
            numbers_dequantise(numbers, sums, count, agreed[block], to);
        }
    }
}

static bool any_in_place(const struct local *local, const struct piece *piece) {
    for (uint32_t rank = 0; rank < local->segment.ranks; rank++)
        if (*piece_content(local, piece, rank) >= IN_PLACE)
            return true;
    return false;
}

bool local_reduce(struct local *local, const struct piece *piece, struct read_failure *failure) {
    const struct segment *segment = &local->segment;
    struct window_head *head = segment_window(segment, piece->window);
    struct source sources[MAX_RANKS];
    if (piece->postponed != NULL && piece->postponed->given) {
        head->kinds[piece->index] = GIVEN;
        return true;
    }
    if (!find_values(local, piece, sources, failure)) {
        head->kinds[piece->index] = POSTPONED;
        postpone(local, piece);
        return is_unreadable(failure);
    }
    if (local->by_all) {
        uint8_t agreed[MOST_PIECE_BLOCKS];
        agree(local, piece, sources, agreed);
        sum_to_words(local, piece, sources, agreed, local->room);
        take_residual(local, piece, agreed);
        local->stats.blocks_received += count_nonzero(agreed, piece->blocks);
        if (!local->task->request.read_only)
            write_values(local, piece, agreed, local->room, false);
        return true;
    }
    uint8_t *agreed = segment_agreed(segment, piece->window, piece->index);
    const unsigned nonzero = agree(local, piece, sources, agreed);
    const bool may_be_whole =
        piece_may_stay(local, piece) && local->alike && !local->task->request.read_only;
    head->owners[piece->index] = (uint8_t)segment->rank;
    if (nonzero == 0) {
        head->kinds[piece->index] = NOTHING;
    } else if (may_be_whole && (any_in_place(local, piece) || 2 * nonzero > piece->blocks)) {
        take_residual(local, piece, agreed);
        sum_to_values(local, piece, sources, agreed);
        head->kinds[piece->index] = WHOLE;
    } else {
        sum_to_words(local, piece, sources, agreed, segment_sums(segment, piece->window, piece->index));
        head->kinds[piece->index] = WORDS;
    }
    return true;
}

// Taking the sums.

static void count_blocks(struct local *local, const struct piece *piece, unsigned received) {
    const bool empty = *piece_content(local, piece, local->segment.rank) == EMPTY;
    const unsigned sent =
        empty ? 0 : count_nonzero(piece_exponents(local, piece, local->segment.rank), piece->blocks);
    local->stats.blocks_sent += sent;
    local->stats.blocks_skipped += piece->blocks - sent;
    local->stats.blocks_received += received;
}

// Copies that of a rank which has the sums already.
static void take_given(struct local *local, const struct piece *piece) {
    if (!local->task->request.read_only && piece->postponed->owner != local->segment.rank)
        memcpy(piece_own_values(local, piece), segment_sums(&local->segment, piece->window, piece->index),
               piece->values * local->task->numbers.value_bytes);
}

bool local_gather(struct local *local, const struct piece *piece, struct read_failure *failure) {
    const struct segment *segment = &local->segment;
    if (local->by_all) {
        count_blocks(local, piece, 0);
        return true;
    }
    struct window_head *head = segment_window(segment, piece->window);
    const struct p4reduce_request *request = &local->task->request;
    const uint8_t kind = head->kinds[piece->index], owner = head->owners[piece->index];
    const uint8_t *agreed = segment_agreed(segment, piece->window, piece->index);
    if (kind == GIVEN)
        take_given(local, piece);
    if (kind == GIVEN || kind == POSTPONED)
        return true;
    count_blocks(local, piece, kind == NOTHING ? 0 : count_nonzero(agreed, piece->blocks));
    const bool clear = *piece_content(local, piece, segment->rank) == UNSCANNED;
    if ((kind == NOTHING && !clear) || (kind == WHOLE && owner == segment->rank))
        return true;
    take_residual(local, piece, agreed);
    if (request->read_only)
        return true;
    if (kind != WHOLE) {
        write_values(local, piece, agreed, segment_sums(segment, piece->window, piece->index), clear);
        return true;
    }
    if (local_read(local, piece, owner, piece_own_values(local, piece), failure))
        return true;
    atomic_store(&head->unread[piece->index], piece->window + 1);
    postpone(local, piece);
    return is_unreadable(failure);
}
