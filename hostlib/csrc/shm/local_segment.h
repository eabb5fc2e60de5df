// SPDX-License-Identifier: Apache-2.0
// The memory that the ranks of one host share, and how they meet to share it.
//
// A tensor is reduced in windows of pieces of blocks, one after the other, through three phases each. Windows take
// turns in a few places of the segment. Nothing in it is a pointer, as it lies elsewhere in each process.
#ifndef P4REDUCE_LOCAL_SEGMENT_H
#define P4REDUCE_LOCAL_SEGMENT_H

#include "shm/local_regions.h"
#include "wire/constants.h"

#include <stdatomic.h>
#include <stdbool.h>

enum {
    WINDOWS = 8,            // at once
    WINDOW_BYTES = 8 << 20, // of values of 4 bytes
    MOST_PIECES = 512,      // a window
    MOST_PIECE_BLOCKS = 1024,
    LINE_BYTES = 64,
    CALL_TEXT_BYTES = 96,
};

enum phase {
    SCANNED,  // each rank knows which of its blocks are zero
    REDUCED,  // the pieces' sums are there
    GATHERED, // each rank has them
    PHASES,
};

// Of a rank's values in a piece.
enum content {
    EMPTY,     // zeros
    COPIED,    // the blocks that are not zero are in the window, one behind the other
    IN_PLACE,  // in the rank's tensor
    UNSCANNED, // the same, and which blocks are zero is not known
};

// Where a piece's sums are.
enum kind {
    NOTHING, // there are none, for all blocks are zero
    WORDS,   // in the window, as words: blocks that are not zero everywhere, one behind the other
    WHOLE,   // in its owner's tensor, as values
    POSTPONED, // not there yet: some rank's values could not be read, and are to be copied
    GIVEN,     // in the window, as values: a copy of what its owner has, for ranks that cannot read that
};

// What a rank has called.
struct call {
    _Atomic uint64_t number; // 1 for the job's first operation; 0 while there was none
    uint32_t fingerprint, type;
    float divisor;
    uint64_t data;        // where the tensor lies in the rank's memory
    struct region region; // in which it lies, for others to map
    uint32_t in_place;    // others may write the sums there
    char text[CALL_TEXT_BYTES];
};

struct rank_record {
    _Alignas(LINE_BYTES) int32_t pid;
    uint64_t probe, probed_at; // a number, and where the rank's own memory has it
    atomic_bool reads_all;     // it can read the memory of all others
    int32_t file;              // that has the segment there
    atomic_bool maps_all;      // it can open the files of all others
    _Atomic uint64_t added;    // of its blocks that are not zero: those that were added up in place, by all ranks
    struct call calls[2];      // that of operation n at n mod 2
    _Atomic uint64_t through[PHASES]; // windows
};

struct window_head {
    _Alignas(LINE_BYTES) _Atomic uint32_t arrived[PHASES]; // ranks, over all windows that were here
    _Alignas(LINE_BYTES) _Atomic uint32_t next_piece;      // that nobody has taken
    uint8_t kinds[MOST_PIECES], owners[MOST_PIECES];       // of pieces
    // Where these are a window's number plus one, they are of that window. Nobody has to take them back.
    _Atomic uint64_t postponed;            // some of its pieces are carried in a later window, too
    _Atomic uint64_t unread[MOST_PIECES];  // of a piece: some rank cannot read the sums in its owner's tensor
    _Atomic uint64_t adds_in_place;        // some rank has mapped all tensors, and adds them up
};

struct segment_head {
    _Atomic uint32_t attached, probed;
    _Atomic uint64_t mismatch; // the number of the operation in which ranks have called different things; 0 for none
    _Atomic uint64_t added; // blocks that are not zero everywhere: those of operations in place
    // The number of the first operation in which a rank has failed, times MAX_RANKS + 1, and the rank; 0 for none. Set
    // before that rank's tensor is its caller's again: what others have read of it may be anything.
    _Atomic uint64_t failed;
};

struct segment {
    uint8_t *base;
    size_t size;
    uint32_t rank, ranks;
    bool readable;         // all ranks can read each other's memory
    bool mappable;         // all ranks can map each other's regions
    unsigned room_pieces;  // that a window has room for
    unsigned pieces;       // a window
    unsigned copied_pieces; // that a window has room for copies of
    size_t piece_bytes;    // of values of 4 bytes
    size_t copies_bytes;   // room for copies of a rank's values in a window
};

// Meets the other ranks. False if they are not all there in time, or cannot share memory: then `error` says why.
bool segment_open(struct segment *segment, const p4reduce_membership *membership, const p4reduce_local_options *options,
                  p4reduce_error *error);
void segment_close(struct segment *segment);

// Sets how `ranks` ranks share; all ranks compute the same.
void segment_lay_out(struct segment *segment, uint32_t rank, uint32_t ranks);
// Says whether all ranks can read each other's memory. Where not, all has to be copied, so windows are smaller.
void segment_can_read(struct segment *segment, bool readable);

struct segment_head *segment_head(const struct segment *segment);
struct rank_record *segment_rank(const struct segment *segment, uint32_t rank);
// Of the window of that number, counted from the job's first.
struct window_head *segment_window(const struct segment *segment, uint64_t window);
// A rank's pieces there: what they contain; where copies of them begin among all of the rank's; exponents of blocks,
// MOST_PIECE_BLOCKS for each; all copies.
uint8_t *segment_contents(const struct segment *segment, uint64_t window, uint32_t rank);
uint32_t *segment_places(const struct segment *segment, uint64_t window, uint32_t rank);
uint8_t *segment_exponents(const struct segment *segment, uint64_t window, uint32_t rank, unsigned piece);
uint8_t *segment_copies(const struct segment *segment, uint64_t window, uint32_t rank);
// The pieces' largest exponents over all ranks, and the sums.
uint8_t *segment_agreed(const struct segment *segment, uint64_t window, unsigned piece);
uint8_t *segment_sums(const struct segment *segment, uint64_t window, unsigned piece);

// Reads another rank's memory, of which `from` is an address there. Returns 0, or the errno.
int segment_read(const struct segment *segment, uint32_t rank, uint64_t from, void *to, size_t size);

#endif
