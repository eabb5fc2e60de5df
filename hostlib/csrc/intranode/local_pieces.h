// SPDX-License-Identifier: Apache-2.0
// What a rank does with a piece of a tensor that the ranks of its host reduce: scan its own values, add up those of
// all, and take the sums.
#ifndef P4REDUCE_LOCAL_PIECES_H
#define P4REDUCE_LOCAL_PIECES_H

#include "protocol/task.h"
#include "shm/local_mappings.h"
#include "shm/local_segment.h"

#include <string.h>

enum { MOST_BLOCK_BYTES = 1024 * 4 }; // of words

// A piece that is carried in a later window, by copies alone.
struct postponed {
    uint64_t first_block;
    bool given;    // its sums are there, in the tensor of `owner`, where not all ranks can read them
    uint8_t owner;
};

// A rank's side of what the ranks of its host reduce.
struct local {
    struct segment segment;
    p4reduce_stats stats;
    uint64_t windows;    // before the operation's first
    uint64_t operations; // that were begun
    uint8_t *room;       // for a piece of each rank
    uint8_t *words;      // for the words of two blocks
    uint8_t *exponents;  // for those of a piece of each rank
    struct mappings mappings;
    uint64_t added, together; // as the segment had them after the last operation in place
    // The operation under way:
    struct task *task;
    struct numbers numbers[MAX_RANKS]; // as each rank has its values
    bool alike;                        // all ranks want their sums as the same values
    bool by_all;                       // so few values that every rank adds up all of them for itself
    struct region region;              // that this rank's tensor lies in, lent for the operation; number 0: in none
    bool in_place;                     // others may write the sums there
    bool scanned;                      // it was said of its first window that all in it are not known
    bool under_way;                    // all ranks do so, and add up in place
    bool unmappable;                   // this rank cannot: it could not map all tensors
    uint8_t *mapped[MAX_RANKS];        // where others' tensors are in this process; NULL for those that are not
    int unmapped[MAX_RANKS];           // why not: an errno; 0 where they lie in no region
    uint64_t regular;            // windows, but those of pieces that were postponed
    uint64_t collected;          // of them, windows of which it is known what was postponed: the same at all ranks
    struct postponed *postponed; // of these, in order
    size_t postponed_count, postponed_room;
    unsigned piece_blocks;
    uint64_t share_blocks; // that a rank takes at once, in place
    size_t copied; // bytes of the window that is scanned
    enum phase awaits; // of the window, for who asks
    uint64_t awaits_window;
};

struct piece {
    uint64_t window;
    unsigned index; // within the window
    uint64_t first_block, first_value;
    unsigned blocks;
    size_t values;
    const struct postponed *postponed; // NULL where it is carried for the first time
};

// Where reading another rank's memory failed.
struct read_failure {
    uint32_t rank;
    int error; // an errno; 0: none
};

// False where there is none of that index in the operation's window of that number, the first being 0.
bool local_piece(const struct local *local, uint64_t number, unsigned index, struct piece *piece);

// Begins an operation: says how large its pieces are.
void local_begin(struct local *local, struct task *task);

// Finds out what of this rank's values is not zero.
void local_scan(struct local *local, const struct piece *piece);
// Adds up all ranks' values, for all ranks; `by_all`: for this one alone. What cannot be read is postponed. False where
// a rank is gone.
bool local_reduce(struct local *local, const struct piece *piece, struct read_failure *failure);
// Takes the sums, where that is left to do. What cannot be read is postponed. False where a rank is gone.
bool local_gather(struct local *local, const struct piece *piece, struct read_failure *failure);

// Of the next window of which it is not known what was postponed, and which all have gathered: collects that. False
// where there is no memory.
bool local_collect(struct local *local);

// Copies a rank's values. False where they cannot be read.
bool local_read(const struct local *local, const struct piece *piece, uint32_t rank, uint8_t *to,
                struct read_failure *failure);

// Parts of a piece.

static inline size_t smaller(size_t one, size_t other) {
    return one < other ? one : other;
}

static inline uint8_t *piece_own_values(const struct local *local, const struct piece *piece) {
    return (uint8_t *)local->task->request.data + local->task->numbers.value_bytes * piece->first_value;
}

// Another rank's, where its tensor is mapped; else NULL.
static inline uint8_t *piece_mapped_values(const struct local *local, const struct piece *piece, uint32_t rank) {
    uint8_t *mapped = local->mapped[rank];
    return mapped != NULL ? mapped + local->numbers[rank].value_bytes * piece->first_value : NULL;
}

static inline uint8_t *piece_exponents(const struct local *local, const struct piece *piece, uint32_t rank) {
    return segment_exponents(&local->segment, piece->window, rank, piece->index);
}

// Whether the others reach this rank's values where they are, as far as is known.
static inline bool piece_may_stay(const struct local *local, const struct piece *piece) {
    return piece->postponed == NULL && (local->segment.readable || local->region.number != 0);
}

static inline uint8_t *piece_content(const struct local *local, const struct piece *piece, uint32_t rank) {
    return segment_contents(&local->segment, piece->window, rank) + piece->index;
}

// Values of one of the piece's blocks: the last may be ragged.
static inline size_t piece_values_in(const struct local *local, const struct piece *piece, unsigned block) {
    return smaller(local->task->block_size, piece->values - (size_t)block * local->task->block_size);
}

// Blocks that are not zero.
static inline unsigned count_nonzero(const uint8_t *exponents, unsigned blocks) {
    unsigned count = 0;
    for (unsigned block = 0; block < blocks; block++)
        count += exponents[block] != BLOCK_ZERO;
    return count;
}

// The first block from number `from` on that is not zero; `blocks` if there is none.
static inline unsigned next_nonzero(const uint8_t *exponents, unsigned from, unsigned blocks) {
    uint64_t some;
    while (from < blocks && exponents[from] == BLOCK_ZERO) {
        from++;
        while (from + sizeof some <= blocks && memcpy(&some, exponents + from, sizeof some) && some == 0)
            from += (unsigned)sizeof some;
    }
    return from;
}

#endif
