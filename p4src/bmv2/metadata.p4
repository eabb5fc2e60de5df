// SPDX-License-Identifier: Apache-2.0
// LEAF: it can be below another switch (include/uplink.p4)
// keep: all ones: go on from the stored sums and keys; 0: start over
// add: lanes whose values are to be added
// touch: lanes whose registers are to be read and written
#define LEAF
#define ARCHITECTURE_HEADERS
#define ARCHITECTURE_METADATA bit<32> keep; bit<8> add; bit<8> touch;

// Of a table's entries: an entry that is hit counts by itself.
#define DIRECT_COUNTER(name) direct_counter(CounterType.packets_and_bytes) name
#define COUNT_DIRECTLY(name)

typedef bit<32> half_t;  // what indexes a register

#include "../include/headers.p4"
#include "../include/metadata.p4"
