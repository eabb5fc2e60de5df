// SPDX-License-Identifier: Apache-2.0
// The engine of a rank whose job is all on its host:
//
//   local_operation.c  The steps of an operation.
//   local_phases.c     The phases that ranks have completed.
//   local_scan.c       The scan of a piece of the rank's own tensor.
//   local_pieces.c     The sum of all ranks' values in a piece, and the copy of the sums into the rank's tensor.
//   local_in_place.c   The sum of tensors that all ranks have mapped.
//
// Ownership of a window's data. Phase SCANNED: each rank writes its own contents, copy offsets, exponents and copies,
// and the sums of pieces that it gives. Phase REDUCED: only the rank that has taken a piece from `next_piece` writes
// its kind, owner and sums, and the exponents of values that are UNSCANNED. Phase GATHERED: all ranks read, and may
// mark pieces as `unread`. local_arrive orders the phases.
#ifndef P4REDUCE_LOCAL_H
#define P4REDUCE_LOCAL_H

#include "intranode/intranode.h"
#include "shm/buffers.h"
#include "shm/mappings.h"

#include <string.h>

extern const struct engine_ops local_engine;

// A tensor is reduced in windows, which consist of pieces, and these of blocks. Each window goes through three phases.
// Windows use the segment's buffers in turn.
enum {
    WINDOWS = 8,       // buffers
    MOST_PIECES = 512, // in a window
    MOST_PIECE_BLOCKS = 1024,
};

// The form of a rank's values in a piece.
enum content {
    EMPTY,     // all zeros
    COPIED,    // the non-zero blocks are in the window, one behind the other
    IN_TENSOR, // the values are only in the rank's tensor
    UNSCANNED, // the same, and it is not known which blocks are zero
};

// The form of a piece's sums.
enum kind {
    NOTHING,   // there are none, because all blocks are zero
    WORDS,     // in the window, as words: the blocks that are non-zero at some rank, one behind the other
    WHOLE,     // in its owner's tensor, as values
    POSTPONED, // not there yet: some rank's values could not be read, and must be copied
    GIVEN,     // in the window, as values: a copy of the owner's sums, for ranks that cannot read its tensor
};

// The head of a window's buffer, in shared memory.
struct window {
    _Alignas(LINE_BYTES) _Atomic uint32_t arrived[PHASES]; // ranks, counted over all windows that used this buffer
    _Alignas(LINE_BYTES) _Atomic uint32_t next_piece;      // the next piece that no rank has taken
    uint8_t kinds[MOST_PIECES], owners[MOST_PIECES];       // for each piece
    // These hold a window's number plus one, so that no rank has to reset them.
    _Atomic uint64_t postponed;           // some of its pieces are reduced in a later window, too
    _Atomic uint64_t unread[MOST_PIECES]; // for each piece: some rank cannot read the sums in its owner's tensor
    _Atomic uint64_t adds_in_place;       // some rank has mapped all tensors, and adds them in place
    struct {
        uint8_t contents[MOST_PIECES];      // for each piece
        uint32_t copy_offsets[MOST_PIECES]; // for each piece: the offset of its copies among all copies of the rank
    } ranks[];
};

// A piece that is reduced again in a later window, by copies alone.
struct postponed {
    uint64_t first_block;
    bool given; // its sums are there, in the tensor of `owner`, but not all ranks can read them
    uint8_t owner;
};

// The progress of an operation: it has ended, waits for other ranks, or has failed.
enum progress { DONE, WAITS, FAILS };

// The state of the engine.
struct local {
    struct intranode node;
    struct buffers windows;
    unsigned pieces;        // in a window
    unsigned copied_pieces; // pieces whose copies a window has room for
    size_t piece_bytes;     // with values of 4 bytes
    uint32_t rank, ranks;
    uint64_t first_window; // number of the operation's first window, counted over all operations
    uint8_t *scratch;      // room for a piece of each rank
    _Alignas(16) uint8_t words[2 * MOST_BLOCK_BYTES]; // for the words of two blocks
    struct mappings mappings;
    uint64_t added, together; // the segment's counters after the last operation in place
    // The operation under way, if there is one:
    bool under_way;
    struct task *task;
    struct numbers numbers[MAX_HOST_RANKS]; // the form of each rank's values
    bool uniform;                           // all ranks want their sums in the same form
    bool one_shot;                          // there are so few values that every rank adds all of them for itself
    struct region region;                   // the region with this rank's tensor, while it is exported; number 0: none
    bool in_place;                          // others may write the sums into this rank's tensor
    bool reduces_in_place;                  // all ranks allow that, and the sums are made in place
    bool unmappable;                        // this rank could not map all tensors
    uint8_t *mapped[MAX_HOST_RANKS];        // addresses of others' tensors in this process; NULL if not mapped
    uint64_t next[PHASES];                  // each phase's next window
    uint64_t window_count;                  // windows of the operation
    uint64_t regular_count;                 // windows without those for postponed pieces
    bool retries;                           // `window_count` includes windows for postponed pieces
    uint64_t collected;          // regular windows whose postponed pieces are collected: the same at all ranks
    struct postponed *postponed; // postponed pieces of these windows, in order
    size_t postponed_count, postponed_room;
    unsigned piece_blocks;    // blocks of a piece
    size_t copied;            // bytes copied into the window that is scanned
    enum phase awaited_phase; // the phase of `awaited_window` that this rank waits for
    uint64_t awaited_window;
};

static inline struct local *local_of(const p4reduce_engine *engine) {
    return engine->state;
}

// Returns the window of that number, counted from the job's first.
static inline struct window *local_window(const struct local *local, uint64_t window) {
    return buffers_head(&local->windows, window);
}

// A piece of a tensor: up to MOST_PIECE_BLOCKS blocks of one window.
struct piece {
    uint64_t window;
    unsigned index; // within the window
    uint64_t first_block, first_value;
    unsigned blocks;
    size_t values;
    const struct postponed *postponed; // NULL if it is reduced for the first time
};

// A rank's blocks of a piece. If they are `packed`, there are only non-zero blocks, and `values` is the next of them.
struct source {
    const uint8_t *values, *exponents; // NULL if all blocks are zero
    bool packed, has_negative_zeros;   // has_negative_zeros: some block of zeros holds a -0
};

// Sets the sizes of windows, which all ranks compute alike. Returns how many bytes all windows take.
size_t local_lay_out(struct local *local);

// Returns a piece of `blocks` blocks from number `first` on, or of as many as are left of the tensor.
struct piece local_blocks(const struct local *local, uint64_t first, uint64_t blocks);

// Finds the piece of that index in the operation's window `number`, counted from 0. Returns false if there is none.
bool local_piece(const struct local *local, uint64_t number, unsigned index, struct piece *piece);

// Begins an operation: sets the size of its pieces.
void local_begin(struct local *local, struct task *task);

// Scans this rank's values of a piece, and publishes their form and exponents.
void local_scan(struct local *local, const struct piece *piece);
// Adds all ranks' values of a piece, for all ranks or, if `one_shot`, for this rank alone. If some values cannot be
// read, the piece is postponed.
void local_reduce(struct local *local, const struct piece *piece);
// Copies the sums of a piece into this rank's tensor, unless they are there. If they cannot be read, the piece is
// postponed.
void local_gather(struct local *local, const struct piece *piece);

// Collects the postponed pieces of the operation's first `windows` windows, which all ranks have gathered. Returns
// false if there is no memory.
bool local_collect(struct local *local, uint64_t windows);

// Finds the largest exponent of each block over all ranks. Returns how many blocks are non-zero at some rank.
unsigned local_agree(const struct local *local, const struct piece *piece, const struct source *sources,
                     uint8_t *agreed);

// Finds the exponents of a rank's values, which that rank has not scanned.
void local_scan_source(const struct local *local, const struct piece *piece, uint32_t rank, struct source *source,
                       uint8_t *exponents);

// Adds the sources' values, and writes the sums into the `tensor_count` tensors `to`: all ranks', or this rank's alone.
void local_sum(struct local *local, const struct piece *piece, struct source *sources, const uint8_t *agreed,
               void *const *to, size_t tensor_count);

// In place.

// Exports the tensor of the operation that begins, if it lies in a region.
void in_place_export(struct local *local);

// When all ranks have come to the operation: finds the form and the address of each rank's values, and whether the sums
// are made in place.
void in_place_find_tensors(struct local *local);

// Adds a share of the tensors in place. Returns false if the operation has failed.
bool in_place_add_up(p4reduce_engine *engine);
// When all ranks have reduced: returns whether some rank could map all tensors, so that the sums are there.
bool in_place_was_added_up(struct local *local);

// Ends the access of other ranks to this rank's tensor. `well`: whether the operation ended without an error. After an
// error it may wait for ranks that still write.
void in_place_revoke(struct local *local, bool well);

// Waiting.

// Handles requests of other threads. Returns whether the operation under way goes on; otherwise it has failed.
bool local_may_continue(p4reduce_engine *engine);
// Returns whether no rank has published a failure in this operation or before; otherwise the operation has failed.
bool local_no_rank_failed(p4reduce_engine *engine);
// Returns the value of `arrived` when all ranks have completed a phase of the window.
uint32_t local_expected_arrivals(const struct local *local, uint64_t window);
// Publishes that this rank has completed a phase of the window.
void local_arrive(struct local *local, enum phase phase, uint64_t window);
// Returns whether all ranks have completed a phase of the window.
bool local_have_all_arrived(const struct local *local, enum phase phase, uint64_t window);

// Parts of a piece.

// Returns the address of this rank's values.
static inline uint8_t *piece_own_values(const struct local *local, const struct piece *piece) {
    return (uint8_t *)local->task->request.data + local->task->numbers.value_bytes * piece->first_value;
}

// Returns the address of another rank's values, or NULL if its tensor is not mapped.
static inline uint8_t *piece_mapped_values(const struct local *local, const struct piece *piece, uint32_t rank) {
    uint8_t *mapped = local->mapped[rank];
    return mapped != NULL ? mapped + local->numbers[rank].value_bytes * piece->first_value : NULL;
}

// The next four functions return the addresses of a piece's data in its window: a rank's exponents, the agreed
// exponents, the sums, and the form of a rank's values.
static inline uint8_t *piece_exponents(const struct local *local, const struct piece *piece, uint32_t rank) {
    return buffers_exponents(&local->windows, piece->window, rank) + (size_t)piece->index * MOST_PIECE_BLOCKS;
}

static inline uint8_t *piece_agreed(const struct local *local, const struct piece *piece) {
    return buffers_agreed(&local->windows, piece->window) + (size_t)piece->index * MOST_PIECE_BLOCKS;
}

static inline uint8_t *piece_sums(const struct local *local, const struct piece *piece) {
    return buffers_sums(&local->windows, piece->window) + piece->index * local->piece_bytes;
}

// Returns whether others can probably read this rank's values in its tensor, so that they need not be copied.
static inline bool piece_is_readable(const struct local *local, const struct piece *piece) {
    return piece->postponed == NULL && (local->node.segment.readable || local->region.number != 0);
}

static inline uint8_t *piece_content(const struct local *local, const struct piece *piece, uint32_t rank) {
    return &local_window(local, piece->window)->ranks[rank].contents[piece->index];
}

// Returns the number of values in one of the piece's blocks. The last block may be ragged.
static inline size_t piece_values_in(const struct local *local, const struct piece *piece, unsigned block) {
    return min_of(local->task->block_size, piece->values - (size_t)block * local->task->block_size);
}

// Returns how many blocks are not zero.
static inline unsigned count_nonzero(const uint8_t *exponents, unsigned blocks) {
    unsigned count = 0;
    for (unsigned block = 0; block < blocks; block++)
        count += exponents[block] != BLOCK_ZERO;
    return count;
}

#endif
