// SPDX-License-Identifier: Apache-2.0
// What a rank does with a piece of a tensor that the ranks of its host reduce: scan its own values, add up those of all,
// and take the sums.
#ifndef P4REDUCE_LOCAL_PIECES_H
#define P4REDUCE_LOCAL_PIECES_H

#include "local_segment.h"
#include "task.h"

// A rank's side of what the ranks of its host reduce.
struct local {
    struct segment segment;
    p4reduce_stats stats;
    uint64_t windows;    // before the operation's first
    uint64_t operations; // that were begun
    uint8_t *room;       // for a piece of each rank
    uint8_t *words;      // for the words of two blocks
    // The operation under way:
    struct task *task;
    struct numbers numbers[MAX_RANKS]; // as each rank has its values
    bool alike;                        // all ranks want their sums as the same values
    bool by_all;                       // so few values that every rank adds up all of them for itself
    unsigned piece_blocks;
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
};

// Where reading another rank's memory failed.
struct read_failure {
    uint32_t rank;
    int error; // an errno; 0: none
};

// False where there is none of that index in the operation's window of that number, the first being 0.
bool local_piece(const struct local *local, uint64_t number, unsigned index, struct piece *piece);

// Takes the operation's measures; at once, as `task` is this rank's.
void local_begin(struct local *local, struct task *task);

void local_scan(struct local *local, const struct piece *piece);
// For all ranks; local_begin's `by_all`: for this one alone.
bool local_reduce(struct local *local, const struct piece *piece, struct read_failure *failure);
bool local_gather(struct local *local, const struct piece *piece, struct read_failure *failure);

#endif
