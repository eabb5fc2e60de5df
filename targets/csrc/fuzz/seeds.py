# SPDX-License-Identifier: Apache-2.0
"""Seeds for the fuzzers: python seeds.py FOLDER writes FOLDER/frames and FOLDER/datagrams."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from random import Random

LANES, BLOCK = 4, 32
IP = bytes([127, 0, 0, 1])
IPV6, MAPPED = bytes([0xFD, *bytes(14), 1]), bytes(10) + b"\xff\xff" + IP
OWN_MAC, HOST_MAC = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
FIRST_UDP_PORT, AGGREGATION_PORT = 1000, 31314


def payload(random: Random, op: int, worker: int, seq: int, slot: int, job: int = 1) -> bytes:
    active = random.getrandbits(LANES)
    lanes = [lane for lane in range(LANES) if active >> lane & 1 and random.random() < 0.9]
    present = sum(1 << lane for lane in lanes)
    head = struct.pack("!BBBBHHHII", 0x10 | op, active, present, worker, job, 1, slot, seq, 0x700 | active)
    keys = b"".join(random.randbytes(4) for _ in range(LANES))
    return head + keys + random.randbytes(4 * BLOCK * len(lanes))


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def ipv4(protocol: int, body: bytes) -> bytes:
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 0, 0x4000, 64, protocol, 0, IP, IP)
    return OWN_MAC + HOST_MAC + b"\x08\x00" + head[:10] + struct.pack("!H", checksum(head)) + head[12:] + body


def udp(source: int, data: bytes) -> bytes:
    return ipv4(17, datagram(source, data))


def datagram(source: int, data: bytes) -> bytes:
    return struct.pack("!HHHH", source, AGGREGATION_PORT, 8 + len(data), 0) + data


def ipv6(next_header: int, body: bytes, source: bytes = IPV6, hop_limit: int = 255) -> bytes:
    head = struct.pack("!IHBB", 6 << 28, len(body), next_header, hop_limit)
    return OWN_MAC + HOST_MAC + b"\x86\xdd" + head + source + IPV6 + body


def frames(random: Random) -> bytes:
    rows = []
    for seq in range(2, 6):
        for worker in range(2):
            data = payload(random, 1, worker, seq, 2 * random.randrange(4) + seq % 2)
            rows.append((1, udp(FIRST_UDP_PORT + worker, data)))
    packet_out = struct.pack("!HH", random.choice([0x8000, 3]), random.choice([0, 1, 9]))
    rows.append((0, packet_out + udp(5, payload(random, random.choice([5, 6, 7]), 0, 4, random.randrange(20)))))
    rows.append((2, ipv4(1, b"\x08\x00\x12\x34" + bytes(8))))
    arp = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, HOST_MAC, IP, bytes(6), IP)
    rows.append((3, b"\xff" * 6 + HOST_MAC + b"\x08\x06" + arp))
    rows.append((4, bytes(6) + HOST_MAC + ipv4(6, bytes(20))[12:]))
    for worker in range(2):
        data = datagram(FIRST_UDP_PORT + worker, payload(random, 1, worker, 2, 2 * random.randrange(4), 2))
        rows += [(2, ipv6(17, data)), (2, ipv6(17, data, MAPPED)), (2, ipv6(0, data))]
    rows.append((2, ipv6(58, b"\x80\x00\x12\x34" + bytes(8))))
    rows += [(2, ipv6(58, bytes([kind, *bytes(7)]) + IPV6 + b"\x01\x01" + HOST_MAC)) for kind in (135, 136)]
    random.shuffle(rows)
    return b"".join(struct.pack("!BH", port, len(frame)) + frame for port, frame in rows)


def datagrams(random: Random) -> bytes:
    rows = b""
    for seq in range(2, 6):
        for worker in range(2):
            ipv6 = random.randrange(2)  # its job is the next, and its port, too: setup.h
            data = payload(random, 1, worker, seq, 2 * random.randrange(4) + seq % 2, 1 + ipv6)
            chain = data * random.choice([1, 1, 2])
            rows += struct.pack("!BHH", worker | ipv6 << 2, len(chain), len(data)) + chain
    return rows


def main(folder: Path) -> None:
    for make in (frames, datagrams):
        to = folder / make.__name__
        to.mkdir(parents=True, exist_ok=True)
        for seed in range(40):
            (to / f"seed{seed}").write_bytes(make(Random(seed)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
