// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_METADATA_P4
#define P4REDUCE_METADATA_P4

#include "headers.p4"

// What the logic files see and decide. The architecture's top file fills this in and acts on it; ARCHITECTURE_METADATA is
// what its own files add.
struct metadata_t {
    // Where the packet came from and shall go.
    port_t  ingress_port;
    port_t  egress_port;
    bit<16> multicast_group;
    bit<1>  drop;
    bit<1>  bridged;         // by L2: not back to where it came from
    bit<1>  from_cpu;
    bit<1>  truncated;       // shorter than its headers say
    bit<1>  bad_checksum;    // of the IPv4 header

    // The addresses that it is for and from, and whether they are the switch's own.
    ipv4_t  address;
    ipv4_t  source;
    bit<1>  own;
    bit<1>  forged;
    mac_t   switch_mac;

    // The sender's membership, from the job's entry.
    bit<1>  admitted;
    bit<32> worker_bit;
    bit<32> full_bitmap;
    bit<16> room;            // halves of the pool from this one on: 0 when it is outside
    bit<16> job_group;

    // The switch above this one in the job's tree, if there is one.
    bit<32> parent_bit;      // 0: there is none
    port_t  parent_port;
    mac_t   parent_mac;
    ipv4_t  parent_ip;
    bit<16> parent_udp_port;
    bit<8>  parent_worker;   // which of its workers this switch is
    bit<1>  from_parent;
    bit<8>  member;          // who sent the packet, as the job's entries have it

    // The slot half and what happened there.
    half_t half;
    bit<8>  outcome;
    bit<1>  complete;
    bit<1>  send_up;         // the partial sums, to the parent
    bit<32> seq;
    bit<32> bitmap;
    bit<32> fingerprint;
    bit<8>  present;         // lanes that any worker has sent values of
    bit<8>  envoy;           // the worker whose packet was the last to be added
    ARCHITECTURE_METADATA
}

#endif
