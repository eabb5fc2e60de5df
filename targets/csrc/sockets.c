// SPDX-License-Identifier: Apache-2.0
#include "sockets.h"

#include <errno.h>
#include <linux/filter.h>
#include <netinet/udp.h>
#include <unistd.h>

#include "wire/headers.h"

#define BUFFER_SIZE (16 << 20)

void enlarge_buffers(int socket) {
    static const int options[][2] = {{SO_RCVBUFFORCE, SO_RCVBUF}, {SO_SNDBUFFORCE, SO_SNDBUF}};
    int size = BUFFER_SIZE;
    for (size_t at = 0; at < sizeof options / sizeof *options; at++)
        if (setsockopt(socket, SOL_SOCKET, options[at][0], &size, sizeof size) != 0)
            setsockopt(socket, SOL_SOCKET, options[at][1], &size, sizeof size);
}

socklen_t socket_address_write(union socket_address *address, struct ip ip, uint16_t udp_port) {
    if (ip_is_ipv4(ip)) {
        address->ipv4 = (struct sockaddr_in){
            .sin_family = AF_INET, .sin_addr.s_addr = htonl(ip_last_32(ip)), .sin_port = htons(udp_port)};
        return sizeof address->ipv4;
    }
    address->ipv6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(udp_port)};
    ip_store(address->ipv6.sin6_addr.s6_addr, ip);
    return sizeof address->ipv6;
}

struct ip socket_address_ip(const union socket_address *address) {
    return address->any.sa_family == AF_INET6 ? ip_load(address->ipv6.sin6_addr.s6_addr)
                                              : ip_of_ipv4(ntohl(address->ipv4.sin_addr.s_addr));
}

uint16_t socket_address_port(const union socket_address *address) {
    return ntohs(address->any.sa_family == AF_INET6 ? address->ipv6.sin6_port : address->ipv4.sin_port);
}

static void set(int socket, int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof value);
}

static void set_ip_options(int socket, bool ipv6) {
    // No fragments: a rank tries the path with the longest packets when it joins.
    if (ipv6) {
        set(socket, IPPROTO_IPV6, IPV6_V6ONLY, 1);
        set(socket, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
        set(socket, IPPROTO_IPV6, IPV6_TCLASS, ECN_ECT_0); // a datagram's own, if it has another
        set(socket, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
        // The protocol needs no checksum (RFC 6935). UDP_NO_CHECK6_TX would exclude UDP_SEGMENT.
        set(socket, SOL_UDP, UDP_NO_CHECK6_RX, 1);
    } else {
        set(socket, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
        set(socket, IPPROTO_IP, IP_TOS, ECN_ECT_0);
        set(socket, IPPROTO_IP, IP_RECVTOS, 1);
    }
}

int udp_socket_open(struct ip ip, uint16_t *udp_port, bool shared) {
    union socket_address address;
    socklen_t length = socket_address_write(&address, ip, *udp_port);
    int made = socket(address.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0)
        return -errno;
    int on = 1;
    enlarge_buffers(made);
    set_ip_options(made, !ip_is_ipv4(ip));
    set(made, SOL_UDP, UDP_GRO, 1); // if the kernel lacks it, datagrams arrive one by one
    if ((shared && setsockopt(made, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0) ||
        bind(made, &address.any, length) != 0 || getsockname(made, &address.any, &length) != 0) {
        int error = errno;
        close(made);
        return -error;
    }
    *udp_port = socket_address_port(&address);
    return made;
}

int steer_by_slot(int socket, unsigned sockets) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, AGGREGATION_SLOT),
        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 1),
        BPF_STMT(BPF_ALU | BPF_MUL | BPF_K, 40503), // Fibonacci hashing
        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 8),
        BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, sockets),
        BPF_STMT(BPF_RET | BPF_A, 0),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return setsockopt(socket, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program) == 0 ? 0 : -errno;
}
