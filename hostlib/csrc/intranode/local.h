// SPDX-License-Identifier: Apache-2.0
// What a rank does whose job is all on its host:
//
//   local_operation.c  It goes through the steps of an operation.
//   local_phases.c     It tells the others which phases it is through with, and sees where they are.
//   local_scan.c       It scans a piece of its tensor.
//   local_pieces.c     It adds up all ranks' values in a piece, and takes the sums.
//   local_in_place.c   It adds up tensors that all ranks have mapped.
#ifndef P4REDUCE_LOCAL_H
#define P4REDUCE_LOCAL_H

#include "intranode/intranode.h"
#include "shm/buffers.h"
#include "shm/mappings.h"

#include <string.h>

extern const struct engine_ops local_engine;

// A tensor is reduced in windows of pieces of blocks, one after the other, through three phases each. Windows take turns
// in the segment's buffers.
enum {
    WINDOWS = 8,       // buffers
    MOST_PIECES = 512, // a window
    MOST_PIECE_BLOCKS = 1024,
};

// Of a rank's values in a piece.
enum content {
    EMPTY,     // zeros
    COPIED,    // the blocks that are not zero are in the window, one behind the other
    IN_TENSOR, // not copied
    UNSCANNED, // the same, and which blocks are zero is not known
};

// Where a piece's sums are.
enum kind {
    NOTHING,   // there are none, for all blocks are zero
    WORDS,     // in the window, as words: blocks that are not zero everywhere, one behind the other
    WHOLE,     // in its owner's tensor, as values
    POSTPONED, // not there yet: some rank's values could not be read, and are to be copied
    GIVEN,     // in the window, as values: a copy of what its owner has, for ranks that cannot read that
};

struct window {
    _Alignas(LINE_BYTES) _Atomic uint32_t arrived[PHASES]; // ranks, over all windows that were here
    _Alignas(LINE_BYTES) _Atomic uint32_t next_piece;      // that nobody has taken
    uint8_t kinds[MOST_PIECES], owners[MOST_PIECES];       // of pieces
    // These hold a window's number plus one, so that nobody has to reset them.
    _Atomic uint64_t postponed;           // some of its pieces are carried in a later window, too
    _Atomic uint64_t unread[MOST_PIECES]; // of a piece: some rank cannot read the sums in its owner's tensor
    _Atomic uint64_t adds_in_place;       // some rank has mapped all tensors, and adds them up
    struct {
        uint8_t contents[MOST_PIECES]; // of pieces
        uint32_t places[MOST_PIECES];  // where copies of them begin among all of the rank's
    } ranks[];
};

// A piece that is carried in a later window, by copies alone.
struct postponed {
    uint64_t first_block;
    bool given;    // its sums are there, in the tensor of `owner`, where not all ranks can read them
    uint8_t owner;
};

// How far an operation has come: it has to wait for other ranks, or has failed.
enum progress { DONE, WAITS, FAILS };

// A rank's side of what the ranks of its host reduce.
struct local {
    struct intranode node;
    struct buffers windows;
    unsigned pieces;        // a window
    unsigned copied_pieces; // that a window has room for copies of
    size_t piece_bytes;     // of values of 4 bytes
    uint32_t rank, ranks;
    uint64_t first_window; // the operation's: so many were before
    uint8_t *room;       // for a piece of each rank
    _Alignas(16) uint8_t words[2 * MOST_BLOCK_BYTES]; // for those of two blocks
    struct mappings mappings;
    uint64_t added, together; // as the segment had them after the last operation in place
    // The operation under way, if there is one:
    bool under_way;
    struct task *task;
    struct numbers numbers[MAX_RANKS]; // as each rank has its values
    bool alike;                        // all ranks want their sums as the same values
    bool by_all;                       // so few values that every rank adds up all of them for itself
    struct region region;              // that this rank's tensor lies in, exported meanwhile; number 0: in none
    bool in_place;                     // others may write the sums there
    bool reduces_in_place;             // all ranks do so, and add up in place
    bool unmappable;                   // this rank cannot: it could not map all tensors
    uint8_t *mapped[MAX_RANKS];        // where others' tensors are in this process; NULL for those that are not
    uint64_t next[PHASES], end;  // windows: the next of each phase, and how many there are
    uint64_t regular;            // windows, but those of pieces that were postponed
    bool retries;                // these are among `end`
    uint64_t collected;          // of them, windows of which it is known what was postponed: the same at all ranks
    struct postponed *postponed; // of these, in order
    size_t postponed_count, postponed_room;
    unsigned piece_blocks;
    size_t copied; // bytes of the window that is scanned
    enum phase awaits; // of the window, for who asks
    uint64_t awaits_window;
};

static inline struct local *local_of(const p4reduce_engine *engine) {
    return engine->state;
}

// The window of that number, counted from the job's first.
static inline struct window *local_window(const struct local *local, uint64_t window) {
    return buffers_head(&local->windows, window);
}

struct piece {
    uint64_t window;
    unsigned index; // within the window
    uint64_t first_block, first_value;
    unsigned blocks;
    size_t values;
    const struct postponed *postponed; // NULL where it is carried for the first time
};

// Where a rank's blocks of a piece are: all, or only those that are not zero, of which `values` is the next.
struct source {
    const uint8_t *values, *exponents; // NULL where all are zero
    bool packed, has_negative_zeros;   // in blocks of zeros
};

// Sets how large windows are; all ranks compute the same. Returns how many bytes all take.
size_t local_lay_out(struct local *local);

// So many blocks from number `first` on, or as many as are left of the tensor.
struct piece local_blocks(const struct local *local, uint64_t first, uint64_t blocks);

// False where there is none of that index in the operation's window of that number, the first being 0.
bool local_piece(const struct local *local, uint64_t number, unsigned index, struct piece *piece);

// Begins an operation: says how large its pieces are.
void local_begin(struct local *local, struct task *task);

// Finds out what of this rank's values is not zero.
void local_scan(struct local *local, const struct piece *piece);
// Adds up all ranks' values, for all ranks; `by_all`: for this one alone. What cannot be read is postponed.
void local_reduce(struct local *local, const struct piece *piece);
// Takes the sums, where that is left to do. What cannot be read is postponed.
void local_gather(struct local *local, const struct piece *piece);

// Collects what was postponed of the operation's first so many windows, which all have gathered. False where there is no
// memory.
bool local_collect(struct local *local, uint64_t windows);

// Returns how many blocks are not zero at some rank, and each one's largest exponent.
unsigned local_agree(const struct local *local, const struct piece *piece, const struct source *sources,
                     uint8_t *agreed);

// Finds the exponents of a rank's values, which nobody has scanned.
void local_scan_source(const struct local *local, const struct piece *piece, uint32_t rank, struct source *source,
                       uint8_t *exponents);

// Adds up to values, in the tensors `to`: all ranks', or this one's.
void local_sum(struct local *local, const struct piece *piece, struct source *sources, const uint8_t *agreed,
               void *const *to, size_t places);

// In place.

// Exports the tensor of the operation that begins to the others, where it lies in a region.
void in_place_export(struct local *local);

// When all ranks have come to the operation: takes down how each has its values, and where, and whether all add up in
// place.
void in_place_find_tensors(struct local *local);

// Adds up a share of the tensors. False if the operation has failed.
bool in_place_add_up(p4reduce_engine *engine);
// When all have: whether somebody could map all tensors.
bool in_place_was_added_up(struct local *local);

// The operation has ended, well or not: others do not write to this rank's tensor any more.
void in_place_revoke(struct local *local, bool well);

// Waiting.

// Whether the operation under way goes on; else it has failed.
bool local_goes_on(p4reduce_engine *engine);
// Whether no rank has failed in it or before, of which all has been read; else it has failed.
bool local_have_all_done(p4reduce_engine *engine);
// How often ranks have come to the end of a phase in the window's place when all have in this window.
uint32_t local_all_of(const struct local *local, uint64_t window);
// This rank is through with a phase of the window.
void local_arrive(struct local *local, enum phase phase, uint64_t window);
// Whether all ranks are.
bool local_are_through(const struct local *local, enum phase phase, uint64_t window);

// Parts of a piece.

static inline uint8_t *piece_own_values(const struct local *local, const struct piece *piece) {
    return (uint8_t *)local->task->request.data + local->task->numbers.value_bytes * piece->first_value;
}

// Another rank's, where its tensor is mapped; else NULL.
static inline uint8_t *piece_mapped_values(const struct local *local, const struct piece *piece, uint32_t rank) {
    uint8_t *mapped = local->mapped[rank];
    return mapped != NULL ? mapped + local->numbers[rank].value_bytes * piece->first_value : NULL;
}

static inline uint8_t *piece_exponents(const struct local *local, const struct piece *piece, uint32_t rank) {
    return buffers_exponents(&local->windows, piece->window, rank) + (size_t)piece->index * MOST_PIECE_BLOCKS;
}

static inline uint8_t *piece_agreed(const struct local *local, const struct piece *piece) {
    return buffers_agreed(&local->windows, piece->window) + (size_t)piece->index * MOST_PIECE_BLOCKS;
}

static inline uint8_t *piece_sums(const struct local *local, const struct piece *piece) {
    return buffers_sums(&local->windows, piece->window) + piece->index * local->piece_bytes;
}

// Whether the others reach this rank's values where they are, as far as is known.
static inline bool piece_may_stay(const struct local *local, const struct piece *piece) {
    return piece->postponed == NULL && (local->node.segment.readable || local->region.number != 0);
}

static inline uint8_t *piece_content(const struct local *local, const struct piece *piece, uint32_t rank) {
    return &local_window(local, piece->window)->ranks[rank].contents[piece->index];
}

// Values of one of the piece's blocks: the last may be ragged.
static inline size_t piece_values_in(const struct local *local, const struct piece *piece, unsigned block) {
    return min_of(local->task->block_size, piece->values - (size_t)block * local->task->block_size);
}

// Blocks that are not zero.
static inline unsigned count_nonzero(const uint8_t *exponents, unsigned blocks) {
    unsigned count = 0;
    for (unsigned block = 0; block < blocks; block++)
        count += exponents[block] != BLOCK_ZERO;
    return count;
}

#endif
