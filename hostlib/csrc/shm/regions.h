// SPDX-License-Identifier: Apache-2.0
// Regions: memory of p4reduce_shared_new, which other ranks of the host may map. All functions may be called from any
// thread.
#ifndef P4REDUCE_REGIONS_H
#define P4REDUCE_REGIONS_H

#include "p4reduce_local.h"

#include <stdbool.h>

// A reference to the region in which a tensor lies, for other processes.
struct region {
    uint64_t number; // among all regions that this process has made; 0: the tensor lies in none
    uint64_t inode;  // by it, a process that opens `file` checks that it is still the region
    uint64_t size;
    uint64_t offset; // of the tensor
    int32_t file;    // the descriptor in this process
    uint32_t reserved;
};

// Exports the region in which `size` bytes at `data` lie, until region_release. Returns false if they lie in none, if
// it is exported already, or if this process has inherited it by a fork.
bool region_export(const void *data, size_t size, struct region *region);
void region_release(const struct region *region);

// Makes an exported region private, with its contents, at the same addresses. This process then no longer sees later
// writes of other processes to `size` bytes at the region's offset. From then on it is ordinary memory, and cannot be
// exported again. Returns false if the kernel refuses.
bool region_revoke(const struct region *region, size_t size);

// Maps the region of another process of this host, and prepares `size` bytes at its offset for use. Returns NULL if the
// region cannot be mapped. The caller unmaps it with munmap.
void *region_map(int32_t pid, const struct region *region, size_t size);
// Returns whether another process's region has not been freed.
bool region_exists(int32_t pid, int32_t file, uint64_t inode);

#endif
