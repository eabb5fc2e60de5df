// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_METADATA_P4
#define P4REDUCE_METADATA_P4

#include "headers.p4"

// Metadata that the controls in include/ read and decide.
//
// The architecture's p4reduce.p4 fills in the first part, applies the controls, and acts on what they decided.
// ARCHITECTURE_METADATA: fields of the architecture's own controls.
struct metadata_t {
    // Ingress, and the way out.
    port_t  ingress_port;
    port_t  egress_port;
    bit<16> multicast_group;
    bit<1>  drop;
    bit<1>  bridged;         // forwarded by MAC: does not leave by its ingress port
    bit<1>  from_cpu;
    bit<1>  truncated;       // shorter than its headers say
    bit<1>  bad_checksum;    // wrong checksum of the IPv4 header

    // Destination and source address (IP or ARP), and whether each is one of the switch's own.
    address_t address;
    address_t source;
    bit<1>  own;
    bit<1>  forged;
    mac_t   switch_mac;

    // The sender's entry in the table of jobs.
    bit<1>  admitted;
    bit<32> worker_bit;
    bit<32> full_bitmap;
    bit<16> room;            // halves of the pool from this one to its end; 0: outside the pool
    bit<16> job_group;

    // The parent: the next switch toward the root of the job's tree.
    bit<1>  below;           // 1: this switch has a parent; 0: it is the root
    port_t  parent_port;
    mac_t   parent_mac;
    address_t parent_ip;
    bit<16> parent_udp_port;
    bit<8>  parent_worker;   // index of this switch among the parent's workers
    bit<1>  from_parent;
    bit<8>  member;          // index of the sender in the job's entries; PARENT for the parent

    // The slot half, and its state after the packet.
    half_t half;
    bit<8>  outcome;
    bit<1>  complete;
    bit<1>  send_up;         // the partial sums go to the parent
    bit<32> seq;
    bit<32> bitmap;
    bit<32> fingerprint;
    bit<8>  present;         // lanes of which any worker has sent values
    bit<8>  envoy;           // the worker whose packet was added last: it alone retransmits to the parent
    ARCHITECTURE_METADATA
}

#endif
