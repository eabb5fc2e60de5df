# SPDX-License-Identifier: Apache-2.0
"""Classic BPF programs for sockets, assembled by hand (see linux/Documentation/networking/filter.rst)."""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import struct

from p4reduce.transport.frames import ETHERTYPE_IPV4

SO_ATTACH_FILTER = 26
_PACKET_HOST = 0

# Ancillary data of a frame, which the kernel gives for these offsets.
_PACKET_TYPE, _INTERFACE = 0xFFFFF004, 0xFFFFF008

_LOAD_HALF, _LOAD_BYTE, _LOAD_WORD = 0x28, 0x30, 0x20
_JUMP_EQUAL, _JUMP_ANY_BIT = 0x15, 0x45
_RETURN = 0x06

DROP_ALL = [(_RETURN, 0, 0, 0)]


def only_datagrams(
    interface: str, source_ip: str, destination_ip: str, destination_port: int
) -> list[tuple[int, int, int, int]]:
    """Return a program that passes only frames with a UDP/IPv4 datagram from and to these addresses.

    The datagram must have no IPv4 options and must not be fragmented. Its frame must be the interface's own. A packet
    socket also gets frames with the tag of a VLAN, and the kernel has removed the tag. If there is an interface for
    this VLAN, the frame is that interface's; otherwise it is another host's (PACKET_OTHERHOST).
    """
    checks = [  # (load, offset in the frame, wanted value)
        (_LOAD_WORD, _PACKET_TYPE, _PACKET_HOST),
        (_LOAD_WORD, _INTERFACE, socket.if_nametoindex(interface)),
        (_LOAD_HALF, 12, ETHERTYPE_IPV4),
        (_LOAD_BYTE, 14, 0x45),
        (_LOAD_BYTE, 23, socket.IPPROTO_UDP),
        (_LOAD_WORD, 26, int(ipaddress.IPv4Address(source_ip))),
        (_LOAD_WORD, 30, int(ipaddress.IPv4Address(destination_ip))),
        (_LOAD_HALF, 36, destination_port),
    ]
    program = []
    # Each jump leads to the drop at the end: over the remaining checks of two instructions each, the fragment check and
    # the accept.
    for index, (load, offset, value) in enumerate(checks):
        program.append((load, 0, 0, offset))
        program.append((_JUMP_EQUAL, 0, 2 * (len(checks) - index - 1) + 3, value))
    program.append((_LOAD_HALF, 0, 0, 20))
    program.append((_JUMP_ANY_BIT, 1, 0, 0x3FFF))  # more fragments, or a fragment's offset
    program.append((_RETURN, 0, 0, 0xFFFFFFFF))
    program.append((_RETURN, 0, 0, 0))
    return program


def attach(sock: socket.socket, program: list[tuple[int, int, int, int]]) -> None:
    """Attach a program to `sock`: instructions of (code, jump if true, jump if false, operand)."""
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(buffer)))
