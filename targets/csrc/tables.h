// SPDX-License-Identifier: Apache-2.0
// Match tables. All are exact. An LPM table is one whose key is the prefix and its length.
#ifndef NATIVE_TABLES_H
#define NATIVE_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "program.h"

#define MAX_ARGUMENTS 6
#define KEY_WORDS 4

struct action {
    enum action_id id;
    uint64_t arguments[MAX_ARGUMENTS];
};

// Words behind those of the table's fields are 0.
struct key {
    uint64_t words[KEY_WORDS];
};

// The key of a table whose only field is an IP address.
static inline struct key key_of_ip(struct ip ip) {
    return (struct key){{ip.high, ip.low}};
}

// The key of TABLE_WORKERS.
static inline struct key key_of_worker(uint16_t job, uint16_t instance) {
    return (struct key){{(uint64_t)job << 16 | instance}};
}

// The key of TABLE_JOBS.
static inline struct key key_of_member(unsigned ingress_port, struct ip source, uint16_t source_port, uint16_t job,
                                       uint16_t generation, uint8_t worker, unsigned vlan) {
    return (struct key){{source.high, source.low,
                         (uint64_t)worker << 48 | (uint64_t)generation << 32 | (uint32_t)source_port << 16 | job,
                         (uint64_t)vlan << 9 | ingress_port}};
}

struct entry {
    struct key key;
    struct action action;
    uint32_t number; // below the table's limit, unique among its entries
    bool used;
};

struct table {
    struct entry *entries; // open addressing, linear probing
    size_t mask;
    unsigned shift; // from a hash to a bucket
    size_t count;
    size_t limit;      // entries that the program allows
    uint32_t *numbers; // the first `count` of these are in use
    struct action miss;
};

// Returns false without memory.
bool table_create(struct table *table, size_t limit, enum action_id miss);
void table_destroy(struct table *table);

// Returns NULL if there is no such entry.
struct entry *table_find(const struct table *table, const struct key *key);
// Returns 0, -EEXIST or -ENOSPC.
int table_insert(struct table *table, const struct key *key, const struct action *action);
// Returns 0 or -ENOENT.
int table_modify(struct table *table, const struct key *key, const struct action *action);
// Returns 0 or -ENOENT.
int table_delete(struct table *table, const struct key *key);

// Returns the action of the entry, or the default action; `hit` may be NULL.
static inline const struct action *table_apply(const struct table *table, const struct key *key, bool *hit) {
    const struct entry *entry = table_find(table, key);
    if (hit != NULL)
        *hit = entry != NULL;
    return entry != NULL ? &entry->action : &table->miss;
}

// Returns the action of the longest matching prefix of an IPv4 address, or the default action.
const struct action *table_apply_longest_prefix(const struct table *table, uint32_t address);

#endif
