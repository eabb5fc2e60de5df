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

int udp_socket_open(struct sockaddr_in *address, bool shared) {
    int made = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0)
        return -errno;
    int on = 1, whole = IP_PMTUDISC_PROBE; // no fragments: a rank tries the path with the longest packets when it joins
    int ecn = ECN_ECT_0;
    socklen_t length = sizeof *address;
    enlarge_buffers(made);
    setsockopt(made, IPPROTO_IP, IP_MTU_DISCOVER, &whole, sizeof whole);
    setsockopt(made, IPPROTO_IP, IP_TOS, &ecn, sizeof ecn); // a datagram's own, if it has another
    setsockopt(made, IPPROTO_IP, IP_RECVTOS, &on, sizeof on);
    setsockopt(made, SOL_UDP, UDP_GRO, &on, sizeof on); // if the kernel lacks it, datagrams arrive one by one
    if ((shared && setsockopt(made, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0) ||
        bind(made, (struct sockaddr *)address, sizeof *address) != 0 ||
        getsockname(made, (struct sockaddr *)address, &length) != 0) {
        int error = errno;
        close(made);
        return -error;
    }
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
