// SPDX-License-Identifier: Apache-2.0
#include "tables.h"

#include <errno.h>
#include <stdlib.h>

static size_t bucket_of(const struct table *table, const struct key *key) {
    // Multilinear hashing (Dietzfelbinger): the top bits of the sum depend on every bit of the key.
    const uint64_t hash = key->words[0] * UINT64_C(0x9E3779B97F4A7C15) + key->words[1] * UINT64_C(0xD6E8FEB86659FD93) +
                          key->words[2] * UINT64_C(0xBF58476D1CE4E5B9) + key->words[3] * UINT64_C(0x94D049BB133111EB);
    return (size_t)(hash >> table->shift);
}

static bool same(const struct key *a, const struct key *b) {
    uint64_t difference = 0;
    for (unsigned at = 0; at < KEY_WORDS; at++)
        difference |= a->words[at] ^ b->words[at];
    return difference == 0;
}

bool table_create(struct table *table, size_t limit, enum action_id miss) {
    size_t buckets = 2;
    unsigned shift = 63;
    while (buckets < 2 * limit) {
        buckets *= 2;
        shift--;
    }
    *table = (struct table){.mask = buckets - 1, .shift = shift, .limit = limit, .miss = {.id = miss}};
    table->entries = calloc(buckets, sizeof *table->entries);
    table->numbers = calloc(limit, sizeof *table->numbers);
    for (size_t number = 0; table->numbers != NULL && number < limit; number++)
        table->numbers[number] = (uint32_t)number;
    return table->entries != NULL && table->numbers != NULL;
}

void table_destroy(struct table *table) {
    free(table->entries);
    free(table->numbers);
    table->entries = NULL;
    table->numbers = NULL;
}

// Returns the entry with this key, or the free bucket for it.
static struct entry *probe(const struct table *table, const struct key *key) {
    size_t bucket = bucket_of(table, key);
    while (table->entries[bucket].used && !same(&table->entries[bucket].key, key))
        bucket = (bucket + 1) & table->mask;
    return &table->entries[bucket];
}

struct entry *table_find(const struct table *table, const struct key *key) {
    if (table->count == 0)
        return NULL;
    struct entry *entry = probe(table, key);
    return entry->used ? entry : NULL;
}

int table_insert(struct table *table, const struct key *key, const struct action *action) {
    struct entry *entry = probe(table, key);
    if (entry->used)
        return -EEXIST;
    if (table->count == table->limit)
        return -ENOSPC;
    *entry = (struct entry){.key = *key, .action = *action, .number = table->numbers[table->count], .used = true};
    table->count++;
    return 0;
}

int table_modify(struct table *table, const struct key *key, const struct action *action) {
    struct entry *entry = table_find(table, key);
    if (entry == NULL)
        return -ENOENT;
    entry->action = *action;
    return 0;
}

int table_delete(struct table *table, const struct key *key) {
    struct entry *entry = table_find(table, key);
    if (entry == NULL)
        return -ENOENT;
    // Deletion without tombstones (Knuth, TAOCP 6.4, algorithm R): each entry behind the gap must remain reachable from
    // its own bucket, so one that may stand in the gap moves there, and leaves a new gap.
    size_t gap = (size_t)(entry - table->entries);
    table->numbers[--table->count] = entry->number;
    for (size_t next = (gap + 1) & table->mask; table->entries[next].used; next = (next + 1) & table->mask) {
        size_t home = bucket_of(table, &table->entries[next].key);
        if (((next - home) & table->mask) >= ((next - gap) & table->mask)) {
            table->entries[gap] = table->entries[next];
            gap = next;
        }
    }
    table->entries[gap].used = false;
    return 0;
}

const struct action *table_apply_longest_prefix(const struct table *table, uint32_t address) {
    for (unsigned length = 32;; length--) {
        uint32_t prefix = length == 0 ? 0 : address >> (32 - length) << (32 - length);
        bool hit;
        const struct action *action = table_apply(table, &(struct key){{prefix, length}}, &hit);
        if (hit || length == 0)
            return action;
    }
}
