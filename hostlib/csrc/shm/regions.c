// SPDX-License-Identifier: Apache-2.0
#include "shm/regions.h"

#include "base/align.h"
#include "base/structures.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PATH_BYTES = 64,
    ADVICE_POPULATE_WRITE = 23, // MADV_POPULATE_WRITE of <linux/mman.h>, since Linux 5.14
};

// Memory of p4reduce_shared_new in this process.
struct allocation {
    struct allocation *next;
    uint8_t *base;
    struct region region; // its offset is 0
    bool exported;
    bool revoked;   // it is no longer shared
    bool inherited; // this process has it from its parent, by a fork
    bool forked;    // a child of this process has it, too, by a fork
};

// Guards the variables below, and the regions in the list. A leaf lock: no other lock is taken under it. It is
// held across a fork, so that the child finds the list consistent.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *all;
static uint64_t made;
static bool watching; // whether the handlers of fork are registered

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void after_fork(void) {
    for (struct allocation *allocation = all; allocation != NULL; allocation = allocation->next)
        allocation->forked = true;
    pthread_mutex_unlock(&lock);
}

static void in_child(void) {
    for (struct allocation *allocation = all; allocation != NULL; allocation = allocation->next)
        allocation->inherited = true;
    pthread_mutex_unlock(&lock);
}

// Makes memory without a name, which is sealed so that no process can shrink it. Otherwise a process that has mapped it
// could get SIGBUS.
static bool map(struct allocation *allocation, size_t size) {
    allocation->region.file = memfd_create("p4reduce tensor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (allocation->region.file < 0)
        return false;
    struct stat status;
    allocation->region.size = size;
    allocation->base = MAP_FAILED;
    if (ftruncate(allocation->region.file, (off_t)size) == 0 &&
        fcntl(allocation->region.file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 &&
        fstat(allocation->region.file, &status) == 0) {
        allocation->region.inode = status.st_ino;
        allocation->base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, allocation->region.file, 0);
    }
    if (allocation->base != MAP_FAILED)
        return true;
    const int error = errno;
    close(allocation->region.file);
    errno = error;
    return false;
}

void *p4reduce_shared_new(size_t bytes, p4reduce_error *error) {
    struct allocation *allocation = bytes > 0 && bytes <= SIZE_MAX / 2 ? calloc(1, sizeof *allocation) : NULL;
    if (allocation == NULL) {
        error_tell(error, P4REDUCE_NO_MEMORY, "no memory of %zu bytes", bytes);
        return NULL;
    }
    if (!map(allocation, align_up(bytes, LEAST_PAGE_BYTES))) {
        error_tell(error, errno == ENOMEM ? P4REDUCE_NO_MEMORY : P4REDUCE_SYSTEM,
                   "no memory of %zu bytes that ranks can share: %s", bytes, strerror(errno));
        free(allocation);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    if (!watching)
        watching = pthread_atfork(before_fork, after_fork, in_child) == 0;
    allocation->forked = !watching; // without the handlers, forks are not noticed
    allocation->region.number = ++made;
    allocation->next = all;
    all = allocation;
    pthread_mutex_unlock(&lock);
    return allocation->base;
}

void p4reduce_shared_free(void *memory) {
    pthread_mutex_lock(&lock);
    struct allocation **link = &all;
    while (*link != NULL && (*link)->base != memory)
        link = &(*link)->next;
    struct allocation *allocation = *link;
    if (allocation != NULL)
        *link = allocation->next;
    pthread_mutex_unlock(&lock);
    if (allocation == NULL)
        return;
    // Other ranks may keep it mapped until they look for freed regions. So its pages are freed now, unless another
    // process may still use them.
    if (!allocation->revoked && !allocation->forked && !allocation->inherited)
        fallocate(allocation->region.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                  (off_t)allocation->region.size);
    munmap(allocation->base, allocation->region.size);
    close(allocation->region.file);
    free(allocation);
}

bool region_export(const void *data, size_t size, struct region *region) {
    const uintptr_t begin = (uintptr_t)data;
    region->number = 0;
    pthread_mutex_lock(&lock);
    for (struct allocation *allocation = all; allocation != NULL && region->number == 0;
         allocation = allocation->next) {
        const uintptr_t offset = begin - (uintptr_t)allocation->base;
        if (begin < (uintptr_t)allocation->base || offset > allocation->region.size ||
            size > allocation->region.size - offset)
            continue;
        if (allocation->exported || allocation->revoked || allocation->inherited)
            break;
        allocation->exported = true;
        *region = allocation->region;
        region->offset = offset;
    }
    pthread_mutex_unlock(&lock);
    return region->number != 0;
}

// Under the lock: returns the region with this number, or NULL.
static struct allocation *find(uint64_t number) {
    struct allocation *allocation = all;
    while (allocation != NULL && allocation->region.number != number)
        allocation = allocation->next;
    return allocation;
}

void region_release(const struct region *region) {
    pthread_mutex_lock(&lock);
    struct allocation *allocation = find(region->number);
    if (allocation != NULL)
        allocation->exported = false;
    pthread_mutex_unlock(&lock);
}

// Makes the kernel copy a page for this process, with its contents, even if other threads write to it meanwhile.
static void own_page(_Atomic uint8_t *byte) {
    uint8_t value = atomic_load(byte);
    while (!atomic_compare_exchange_weak(byte, &value, value)) // some processors write only if the value is as expected
        ;
}

// Replaces a shared mapping by a private one of the same file. The new one is made elsewhere first, and then moved. So
// if the kernel refuses, for example for lack of memory, the shared mapping is unchanged.
static bool make_private(const struct allocation *allocation) {
    void *own = mmap(NULL, allocation->region.size, PROT_READ | PROT_WRITE, MAP_PRIVATE, allocation->region.file, 0);
    if (own == MAP_FAILED)
        return false;
    if (mremap(own, allocation->region.size, allocation->region.size, MREMAP_MAYMOVE | MREMAP_FIXED,
               allocation->base) != MAP_FAILED)
        return true;
    munmap(own, allocation->region.size);
    return false;
}

bool region_revoke(const struct region *region, size_t size) {
    pthread_mutex_lock(&lock);
    struct allocation *allocation = find(region->number);
    bool well = allocation != NULL;
    if (well && !allocation->revoked) {
        // All that this process has written so far is in the file, and it writes to private pages from now on. So no
        // write of its other threads is lost meanwhile.
        well = make_private(allocation);
        allocation->revoked = well;
    }
    if (well)
        for (uint64_t at = region->offset / LEAST_PAGE_BYTES * LEAST_PAGE_BYTES; at < region->offset + size;
             at += LEAST_PAGE_BYTES)
            own_page((_Atomic uint8_t *)allocation->base + at);
    pthread_mutex_unlock(&lock);
    return well;
}

static void path_of(int32_t pid, int32_t file, char *path) {
    snprintf(path, PATH_BYTES, "/proc/%d/fd/%d", pid, file);
}

bool region_exists(int32_t pid, int32_t file, uint64_t inode) {
    char path[PATH_BYTES];
    path_of(pid, file, path);
    struct stat status;
    return stat(path, &status) == 0 && status.st_ino == inode && S_ISREG(status.st_mode);
}

// Makes the kernel enter all pages into the page table now, if it can, and not one by one at page faults.
static void enter_pages(uint8_t *base, const struct region *region, size_t size) {
    const uint64_t begin = region->offset / LARGEST_PAGE_BYTES * LARGEST_PAGE_BYTES;
    madvise(base + begin, region->offset + size - begin, ADVICE_POPULATE_WRITE);
}

void *region_map(int32_t pid, const struct region *region, size_t size) {
    char path[PATH_BYTES];
    path_of(pid, region->file, path);
    if (!region_exists(pid, region->file, region->inode))
        return NULL;
    const int file = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (file < 0)
        return NULL;
    struct stat status;
    void *base = MAP_FAILED;
    if (fstat(file, &status) == 0 && status.st_ino == region->inode && (uint64_t)status.st_size == region->size)
        base = mmap(NULL, region->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (base == MAP_FAILED)
        return NULL;
    enter_pages(base, region, size);
    return base;
}
