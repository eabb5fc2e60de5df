// SPDX-License-Identifier: Apache-2.0
// IP addresses of either family. An IPv4 address has its IPv4-mapped form ::ffff:a.b.c.d (RFC 4291, 2.5.5.2), so tables
// and comparisons need no family.
#ifndef NATIVE_IP_H
#define NATIVE_IP_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/bytes.h"

// The numbers of the address's upper and lower 64 bits.
struct ip {
    uint64_t high, low;
};

static inline struct ip ip_of_ipv4(uint32_t ipv4) {
    return (struct ip){0, UINT64_C(0xFFFF) << 32 | ipv4};
}

static inline bool ip_is_ipv4(struct ip ip) {
    return ip.high == 0 && ip.low >> 32 == 0xFFFF;
}

// The IPv4 address of a mapped one, and the last four bytes of any other.
static inline uint32_t ip_last_32(struct ip ip) {
    return (uint32_t)ip.low;
}

static inline bool ip_same(struct ip one, struct ip other) {
    return one.high == other.high && one.low == other.low;
}

static inline uint64_t ip_folded(struct ip ip) {
    return ip.low ^ ip.high * UINT64_C(0x9E3779B97F4A7C15);
}

// A hash that differs between any two IPv4 addresses.
static inline uint32_t ip_hash(struct ip ip) {
    const uint64_t folded = ip_folded(ip);
    return (uint32_t)(folded ^ folded >> 32);
}

// An address in a key or in an action's arguments: its upper word, then its lower one.
static inline struct ip ip_of_words(const uint64_t *words) {
    return (struct ip){words[0], words[1]};
}

// An address in an IPv6 header.
static inline struct ip ip_load(const uint8_t *from) {
    return (struct ip){(uint64_t)load_32(from) << 32 | load_32(from + 4),
                       (uint64_t)load_32(from + 8) << 32 | load_32(from + 12)};
}

static inline void ip_store(uint8_t *to, struct ip ip) {
    store_32(to, (uint32_t)(ip.high >> 32));
    store_32(to + 4, (uint32_t)ip.high);
    store_32(to + 8, (uint32_t)(ip.low >> 32));
    store_32(to + 12, (uint32_t)ip.low);
}

// The MAC address that stands for a host in the frames of UDP ports, as in p4reduce/transport/addresses.py.
static inline uint64_t ip_mac(struct ip ip) {
    const uint64_t folded = ip_folded(ip);
    return ip_is_ipv4(ip) ? UINT64_C(0x0200) << 32 | ip_last_32(ip)
                          : UINT64_C(0x06) << 40 | ((folded ^ folded >> 40) & ((UINT64_C(1) << 40) - 1));
}

#endif
