// SPDX-License-Identifier: Apache-2.0
// The P4 program that this code implements: the ids and the description of its tables, actions, counters and meters.
// There is no other description: Python reads this one with `native_program`, and refuses programs that differ.
#ifndef NATIVE_PROGRAM_H
#define NATIVE_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ip.h"

#define PORTS 512    // 9 bits
#define MEMBERS 4096 // of all jobs, at most

// program.c has the keys' fields.
enum table_id {
    TABLE_LOSS_IN,
    TABLE_OWN_ADDRESSES,
    TABLE_JOBS,
    TABLE_MAC_ADDRESSES,
    TABLE_ROUTER_MACS,
    TABLE_ROUTES,
    TABLE_LOSS_OUT,
    TABLE_WORKERS,
    TABLE_UPLINKS,
    TABLE_OWN_SOURCES,
    TABLES,
};

// program.c has the parameters, in the order of an action's arguments.
enum action_id {
    NO_ACTION,
    ACTION_LOSE,
    ACTION_OWN,
    ACTION_ADMIT,
    ACTION_FORWARD,
    ACTION_FLOOD,
    ACTION_DISCARD,
    ACTION_ROUTE,
    ACTION_UNROUTABLE,
    ACTION_ADDRESS,
    ACTION_ADDRESS_IN_VLAN,
    ACTION_UPLINK,
    ACTION_FORGED,
    ACTIONS,
};

enum counter_id {
    COUNTER_LOSSES_IN,
    COUNTER_OUTCOMES,
    COUNTER_LOSSES_OUT,
    COUNTER_FORGERIES,
    COUNTERS,
};

struct program_action {
    const char *name;       // in the control of its table
    const char *parameters; // name:bits of each
};

// Positions of arguments. An IP address takes two: its upper word, then its lower one.
enum {
    OWN_MAC = 0,

    ADMIT_WORKER_BIT = 0,
    ADMIT_FULL_BITMAP = 1,
    ADMIT_POOL_BASE = 2,
    ADMIT_POOL_HALVES = 3,
    ADMIT_GROUP = 4,

    ROUTE_PORT = 0,
    ROUTE_SOURCE_MAC = 1,
    ROUTE_NEXT_HOP_MAC = 2,

    ADDRESS_MAC = 0,
    ADDRESS_IP = 1,
    ADDRESS_UDP_PORT = 3,
    ADDRESS_VLAN = 4,

    UPLINK_PORT = 0,
    UPLINK_MAC = 1,
    UPLINK_IP = 2,
    UPLINK_UDP_PORT = 4,
    UPLINK_WORKER = 5,
};

#define MAX_TABLE_ACTIONS 3

struct program_table {
    const char *name; // as in P4Info
    // name:bits:word:shift of each field, which begins at bit `shift` of that word of the key. One of 128 bits is two
    // words, the upper one first.
    const char *key;
    bool lpm;    // the only field is a prefix, whose length is the key's second word
    bool counts; // entries may have direct counters
    unsigned size;
    enum action_id actions[MAX_TABLE_ACTIONS];
    unsigned action_count;
    enum action_id miss; // the default action
};

// An indirect counter or meter.
struct program_array {
    const char *name; // as in P4Info
    unsigned size;
};

extern const struct program_action program_actions[ACTIONS];
extern const struct program_table program_tables[TABLES];
extern const struct program_array program_counters[COUNTERS];
extern const struct program_array program_hellos; // a meter of packets

// Writes all of this to `text`, which has `size` bytes, as JSON. Lists are in the order of ids. Returns the length, or
// -ENOSPC.
long program_write(char *text, size_t size);

#endif
