// SPDX-License-Identifier: Apache-2.0

// LEAF: the switch can be below another one (include/uplink.p4).
// TAGS: workers may be in VLANs (include/delivery.p4).
// IPV6: workers may have IPv6 addresses (include/ipv6_states.p4).
// Metadata of this architecture:
//   keep    all ones: continue from the stored sums and keys; 0: start over.
//   add     lanes whose values are added.
//   touch   lanes whose registers are read and written.
//   marked  1: the reply is marked (CE).
//   vlan    VLAN of the frame's tag; 0: no tag.
//   growth  bytes of the lanes that are in this round but not in this packet.
//   advertised  1: the packet is an advertisement of the switch, whose checksum is to be computed.
#define LEAF
#define TAGS
#define IPV6
#define ARCHITECTURE_HEADERS
#define ARCHITECTURE_METADATA \
    bit<32> keep; bit<8> add; bit<8> touch; bit<1> marked; bit<12> vlan; bit<16> growth; bit<1> advertised;

// Direct counters of tables. In v1model an entry that is hit counts by itself.
#define DIRECT_COUNTER(name) direct_counter(CounterType.packets_and_bytes) name
#define COUNT_DIRECTLY(name)

typedef bit<32> half_t;  // index of a register

#include "../include/headers.p4"
#include "../include/metadata.p4"
