// SPDX-License-Identifier: Apache-2.0
#include "local_pieces.h"

#include <string.h>

enum { PROBED_BLOCKS = 8, VALUE_BYTES = 4, WORD_BYTES = 4, FEW_BYTES = 32 << 10 };

static size_t smaller(size_t one, size_t other) {
    return one < other ? one : other;
}

void local_begin(struct local *local, struct task *task) {
    local->task = task;
    const size_t most = local->segment.piece_bytes / ((size_t)task->block_size * VALUE_BYTES);
    local->piece_blocks = (unsigned)smaller(most, MOST_PIECE_BLOCKS);
    local->by_all = task->blocks <= local->piece_blocks && task->request.count * VALUE_BYTES <= FEW_BYTES;
}

bool local_piece(const struct local *local, uint64_t number, unsigned index, struct piece *piece) {
    const struct task *task = local->task;
    const uint64_t first = (number * local->segment.pieces + index) * local->piece_blocks;
    if (index >= local->segment.pieces || first >= task->blocks)
        return false;
    *piece = (struct piece){.window = local->windows + number, .index = index, .first_block = first};
    piece->blocks = (unsigned)smaller(task->blocks - first, local->piece_blocks);
    piece->first_value = first * task->block_size;
    piece->values = smaller(task->request.count - piece->first_value, (size_t)piece->blocks * task->block_size);
    return true;
}

static uint8_t *own_values(const struct local *local, const struct piece *piece) {
    return (uint8_t *)local->task->request.data + local->task->numbers.value_bytes * piece->first_value;
}

static uint8_t *exponents_of(const struct local *local, const struct piece *piece, uint32_t rank) {
    return segment_exponents(&local->segment, piece->window, rank, piece->index);
}

static uint8_t *content_of(const struct local *local, const struct piece *piece, uint32_t rank) {
    return segment_contents(&local->segment, piece->window, rank) + piece->index;
}

// Values of one of the piece's blocks: the last may be ragged.
static size_t values_in(const struct local *local, const struct piece *piece, unsigned block) {
    return smaller(local->task->block_size, piece->values - (size_t)block * local->task->block_size);
}

// Scanning.

// Whether some blocks, spread over the piece, are all not zero.
static bool seems_dense(const struct local *local, const struct piece *piece) {
    const struct task *task = local->task;
    const size_t block_bytes = task->block_size * task->numbers.value_bytes;
    for (unsigned i = 0; i < PROBED_BLOCKS; i++) {
        const unsigned block = (unsigned)((uint64_t)i * piece->blocks / PROBED_BLOCKS);
        uint8_t exponent;
        numbers_scan(&task->numbers, own_values(local, piece) + block * block_bytes, values_in(local, piece, block),
                     task->block_size, &exponent);
        if (exponent == BLOCK_ZERO)
            return false;
    }
    return true;
}

// Blocks of zeros that count all the same have the least exponent of those that are not zero: as in task.c.
static void announce_zeros(const struct task *task, const struct piece *piece, uint8_t *exponents) {
    const uint32_t zeros = task->request.zeros;
    const uint8_t least = task->request.type == P4REDUCE_INT32 ? BLOCK_NOT_FINITE : 1;
    for (unsigned block = 0; block < piece->blocks; block++)
        if (exponents[block] == BLOCK_ZERO &&
            (zeros == P4REDUCE_ZEROS_SENT ||
             (zeros == P4REDUCE_ZEROS_FIRST && piece->first_block + block < task->streams)))
            exponents[block] = least;
}

// Writes +0 to blocks of zeros, so that none keeps a -0.
static void clear_zeros(const struct local *local, const struct piece *piece, const uint8_t *exponents) {
    const struct task *task = local->task;
    const size_t block_bytes = task->block_size * task->numbers.value_bytes;
    for (unsigned block = 0; block < piece->blocks; block++)
        if (exponents[block] == BLOCK_ZERO)
            memset(own_values(local, piece) + block * block_bytes, 0,
                   values_in(local, piece, block) * task->numbers.value_bytes);
}

static unsigned count_nonzero(const uint8_t *exponents, unsigned blocks) {
    unsigned count = 0;
    for (unsigned block = 0; block < blocks; block++)
        count += exponents[block] != BLOCK_ZERO;
    return count;
}

// Copies what is not zero behind the copies of the pieces before.
static void copy_blocks(struct local *local, const struct piece *piece, const uint8_t *exponents) {
    const struct task *task = local->task;
    const size_t block_bytes = task->block_size * task->numbers.value_bytes;
    const uint8_t *from = own_values(local, piece);
    uint8_t *copies = segment_copies(&local->segment, piece->window, local->segment.rank);
    segment_places(&local->segment, piece->window, local->segment.rank)[piece->index] = (uint32_t)local->copied;
    for (unsigned block = 0; block < piece->blocks; block++, from += block_bytes)
        if (exponents[block] != BLOCK_ZERO) {
            memcpy(copies + local->copied, from, values_in(local, piece, block) * task->numbers.value_bytes);
            local->copied += block_bytes;
        }
}

void local_scan(struct local *local, const struct piece *piece) {
    const struct task *task = local->task;
    uint8_t *content = content_of(local, piece, local->segment.rank);
    uint8_t *exponents = exponents_of(local, piece, local->segment.rank);
    if (piece->index == 0)
        local->copied = 0;
    const bool readable = local->segment.readable && !local->by_all;
    if (readable && task->request.zeros == P4REDUCE_ZEROS_SKIPPED && seems_dense(local, piece)) {
        *content = UNSCANNED;
        return;
    }
    const bool negative_zeros =
        numbers_scan(&task->numbers, own_values(local, piece), piece->values, task->block_size, exponents);
    if (task->request.zeros != P4REDUCE_ZEROS_SKIPPED)
        announce_zeros(task, piece, exponents);
    if (negative_zeros && !task->request.read_only)
        clear_zeros(local, piece, exponents);
    const unsigned nonzero = count_nonzero(exponents, piece->blocks);
    const size_t bytes = nonzero * task->block_size * task->numbers.value_bytes;
    const bool much = 2 * nonzero > piece->blocks || local->copied + bytes > local->segment.copies_bytes;
    *content = nonzero == 0 ? EMPTY : readable && much ? IN_PLACE : COPIED;
    if (*content == COPIED)
        copy_blocks(local, piece, exponents);
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
        const uint8_t content = *content_of(local, piece, rank);
        struct source *source = &sources[rank];
        *source = (struct source){.block_bytes = local->task->block_size * numbers->value_bytes};
        if (content == EMPTY)
            continue;
        source->packed = content == COPIED;
        uint8_t *exponents = exponents_of(local, piece, rank);
        source->exponents = exponents;
        if (content == COPIED) {
            source->values = segment_copies(segment, piece->window, rank) +
                             segment_places(segment, piece->window, rank)[piece->index];
        } else if (rank == segment->rank) {
            source->values = own_values(local, piece);
        } else {
            uint8_t *room = local->room + rank * segment->piece_bytes;
            const struct call *call = &segment_rank(segment, rank)->calls[local->operations % 2];
            failure->rank = rank;
            failure->error = segment_read(segment, rank, call->data + numbers->value_bytes * piece->first_value, room,
                                          piece->values * numbers->value_bytes);
            if (failure->error)
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
    const size_t count = values_in(local, piece, block), first = (size_t)block * local->task->block_size;
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
    const uint8_t *exponents = exponents_of(local, piece, local->segment.rank);
    if (task->request.residual == NULL || *content_of(local, piece, local->segment.rank) == EMPTY)
        return;
    for (unsigned block = 0; block < piece->blocks; block++)
        if (exponents[block] != BLOCK_ZERO)
            task_quantise(task, piece->first_block + block, agreed[block], local->words);
}

static size_t word_bytes_a_block(const struct local *local) {
    return local->task->block_size / local->task->numbers.per_word * WORD_BYTES;
}

// To this rank's tensor. Where `clear`, blocks of zeros are written, too, as they may hold a -0.
static void write_values(struct local *local, const struct piece *piece, const uint8_t *agreed, const uint8_t *words,
                         bool clear) {
    const struct numbers *numbers = &local->task->numbers;
    const size_t block_bytes = local->task->block_size * numbers->value_bytes, stride = word_bytes_a_block(local);
    uint8_t *to = own_values(local, piece);
    for (unsigned block = 0; block < piece->blocks; block++, to += block_bytes, words += stride) {
        const size_t count = values_in(local, piece, block);
        if (agreed[block] != BLOCK_ZERO)
            numbers_dequantise(numbers, words, count, agreed[block], to);
        else if (clear)
            memset(to, 0, count * numbers->value_bytes);
    }
}

static void sum_to_words(struct local *local, const struct piece *piece, struct source *sources,
                         const uint8_t *agreed, uint8_t *words) {
    const size_t stride = word_bytes_a_block(local);
    for (unsigned block = 0; block < piece->blocks; block++)
        if (agreed[block] != BLOCK_ZERO)
            sum_block(local, piece, sources, block, agreed[block], words + block * stride);
}

// Into this rank's tensor, from which the others read them.
static void sum_to_values(struct local *local, const struct piece *piece, struct source *sources,
                          const uint8_t *agreed) {
    const struct numbers *numbers = &local->task->numbers;
    const size_t block_bytes = local->task->block_size * numbers->value_bytes;
    uint8_t *sums = local->words + word_bytes_a_block(local), *to = own_values(local, piece);
    for (unsigned block = 0; block < piece->blocks; block++, to += block_bytes) {
        const size_t count = values_in(local, piece, block);
        if (agreed[block] == BLOCK_ZERO) {
            memset(to, 0, count * numbers->value_bytes);
            continue;
        }
        sum_block(local, piece, sources, block, agreed[block], sums);
        numbers_dequantise(numbers, sums, count, agreed[block], to);
    }
}

static bool any_in_place(const struct local *local, const struct piece *piece) {
    for (uint32_t rank = 0; rank < local->segment.ranks; rank++)
        if (*content_of(local, piece, rank) >= IN_PLACE)
            return true;
    return false;
}

bool local_reduce(struct local *local, const struct piece *piece, struct read_failure *failure) {
    const struct segment *segment = &local->segment;
    struct source sources[MAX_RANKS];
    if (!find_values(local, piece, sources, failure))
        return false;
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
    struct window_head *head = segment_window(segment, piece->window);
    uint8_t *agreed = segment_agreed(segment, piece->window, piece->index);
    const unsigned nonzero = agree(local, piece, sources, agreed);
    const bool may_be_whole = segment->readable && local->alike && !local->task->request.read_only;
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
    const bool empty = *content_of(local, piece, local->segment.rank) == EMPTY;
    const unsigned sent =
        empty ? 0 : count_nonzero(exponents_of(local, piece, local->segment.rank), piece->blocks);
    local->stats.blocks_sent += sent;
    local->stats.blocks_skipped += piece->blocks - sent;
    local->stats.blocks_received += received;
}

bool local_gather(struct local *local, const struct piece *piece, struct read_failure *failure) {
    const struct segment *segment = &local->segment;
    if (local->by_all) {
        count_blocks(local, piece, 0);
        return true;
    }
    const struct window_head *head = segment_window(segment, piece->window);
    const struct p4reduce_request *request = &local->task->request;
    const uint8_t kind = head->kinds[piece->index], owner = head->owners[piece->index];
    const uint8_t *agreed = segment_agreed(segment, piece->window, piece->index);
    count_blocks(local, piece, kind == NOTHING ? 0 : count_nonzero(agreed, piece->blocks));
    if (kind == NOTHING || (kind == WHOLE && owner == segment->rank))
        return true;
    take_residual(local, piece, agreed);
    if (request->read_only)
        return true;
    if (kind == WORDS) {
        const bool clear = *content_of(local, piece, segment->rank) == UNSCANNED;
        write_values(local, piece, agreed, segment_sums(segment, piece->window, piece->index), clear);
        return true;
    }
    const size_t value_bytes = local->task->numbers.value_bytes;
    const struct call *call = &segment_rank(segment, owner)->calls[local->operations % 2];
    failure->rank = owner;
    failure->error = segment_read(segment, owner, call->data + value_bytes * piece->first_value,
                                  own_values(local, piece), piece->values * value_bytes);
    return failure->error == 0;
}
