// SPDX-License-Identifier: Apache-2.0
// What is known of an operation's blocks: the streams of a few slots are scanned a piece at a time, as far as packets
// need.
#ifndef P4REDUCE_SCANNING_H
#define P4REDUCE_SCANNING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Blocks scanned between packets, of which a piece is a group's share. Slots scanned together: neighbours in memory.
enum { SCAN_BLOCKS = 4096, GROUP_SLOTS = 16 };

struct task;

struct scanning {
    uint32_t *scanned;  // of each group of slots: rows
    uint32_t piece;     // rows
    uint8_t *exponents; // of blocks, stream after stream: BLOCK_ZERO for those that are not to be sent, or not scanned
    size_t stride;      // bytes from one stream to the next
    uint64_t zeros;     // blocks scanned that are not to be sent
};

// Of a task that has all else. False where there is no memory.
bool scanning_open(struct task *task);

void scanning_close(struct task *task);

// The key of the first block of a stream that is to be sent, from `number` on: NO_KEY if there is none. False where
// that is not known yet; then `number` becomes the first that it can be.
bool scanning_next_key(const struct task *task, uint32_t stream, uint32_t *number, uint32_t *key);

// Scans the next piece of the streams of a slot and those beside it. Returns how many blocks of the tensor it has.
uint32_t scanning_more(struct task *task, uint32_t slot);

#endif
