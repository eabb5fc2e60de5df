// SPDX-License-Identifier: Apache-2.0
// Memory of this process that other ranks of its host may map: what p4reduce_shared_new gives.
#ifndef P4REDUCE_REGIONS_H
#define P4REDUCE_REGIONS_H

#include "p4reduce_local.h"

#include <stdbool.h>

// Where other processes find the region that a tensor lies in.
struct region {
    uint64_t number; // among all that this process has made; 0: there is none
    uint64_t inode;  // by which who opens `file` sees that it is still the region
    uint64_t size;
    uint64_t offset; // of the tensor
    int32_t file;
    uint32_t reserved;
};

// Exports the region in which `size` bytes at `data` lie, until it is released. False where there is none, where it is
// exported already, or where it is another process's that has forked this one.
bool region_export(const void *data, size_t size, struct region *region);
void region_release(const struct region *region);

// Takes the memory back, with what is in it, at the same addresses: what other processes write to `size` bytes at the
// region's offset from now on is not seen here any more, whatever they are at. From then on it is memory as any other.
// False where the kernel refuses.
bool region_revoke(const struct region *region, size_t size);

// Maps the region of another process of this host, and prepares `size` bytes at its offset for use. NULL where
// that cannot be.
void *region_map(int32_t pid, const struct region *region, size_t size);
// Whether it has not been freed.
bool region_exists(int32_t pid, int32_t file, uint64_t inode);

#endif
