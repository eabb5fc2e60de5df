# SPDX-License-Identifier: Apache-2.0
"""Classic BPF programs for sockets, assembled by hand (see linux/Documentation/networking/filter.rst)."""

from __future__ import annotations

import ctypes
import socket
import struct

from p4reduce.transport.addresses import is_ipv6, packed
from p4reduce.transport.frames import ANY_FRAGMENT, ETHERTYPE_IPV4, ETHERTYPE_IPV6

SO_ATTACH_FILTER = 26
_PACKET_HOST = 0

# Ancillary data of a frame, which the kernel gives for these offsets.
_PACKET_TYPE, _INTERFACE = 0xFFFFF004, 0xFFFFF008

_LOAD_HALF, _LOAD_BYTE, _LOAD_WORD = 0x28, 0x30, 0x20
_AND = 0x54
_JUMP_EQUAL = 0x15
_RETURN = 0x06
_ALL_BITS = 0xFFFFFFFF

Instruction = tuple[int, int, int, int]
"""An instruction: code, jump if true, jump if false, operand."""

DROP_ALL: list[Instruction] = [(_RETURN, 0, 0, 0)]


def only_datagrams(interface: str, source_ip: str, destination_ip: str, destination_port: int) -> list[Instruction]:
    """Return a program that passes only frames with a UDP datagram from and to these addresses, of one family.

    The datagram must have no IPv4 options or IPv6 extension headers, and must not be fragmented. Its frame must be the
    interface's own. A packet socket also gets frames with the tag of a VLAN, and the kernel has removed the tag. If
    there is an interface for this VLAN, the frame is that interface's; otherwise it is another host's
    (PACKET_OTHERHOST).
    """
    checks = [  # (load, offset in the frame, mask, wanted value)
        (_LOAD_WORD, _PACKET_TYPE, _ALL_BITS, _PACKET_HOST),
        (_LOAD_WORD, _INTERFACE, _ALL_BITS, socket.if_nametoindex(interface)),
    ]
    if is_ipv6(source_ip):
        checks += [
            (_LOAD_HALF, 12, _ALL_BITS, ETHERTYPE_IPV6),
            (_LOAD_BYTE, 14, 0xF0, 0x60),
            (_LOAD_BYTE, 20, _ALL_BITS, socket.IPPROTO_UDP),
            *_words(22, packed(source_ip) + packed(destination_ip)),
            (_LOAD_HALF, 56, _ALL_BITS, destination_port),
        ]
    else:
        checks += [
            (_LOAD_HALF, 12, _ALL_BITS, ETHERTYPE_IPV4),
            (_LOAD_BYTE, 14, _ALL_BITS, 0x45),
            (_LOAD_HALF, 20, ANY_FRAGMENT, 0),
            (_LOAD_BYTE, 23, _ALL_BITS, socket.IPPROTO_UDP),
            *_words(26, packed(source_ip) + packed(destination_ip)),
            (_LOAD_HALF, 36, _ALL_BITS, destination_port),
        ]
    program = [(_RETURN, 0, 0, _ALL_BITS), *DROP_ALL]
    for load, offset, mask, value in reversed(checks):
        masked = [] if mask == _ALL_BITS else [(_AND, 0, 0, mask)]
        program = [(load, 0, 0, offset), *masked, (_JUMP_EQUAL, 0, len(program) - 1, value), *program]
    return program


def _words(offset: int, wanted: bytes) -> list[tuple[int, int, int, int]]:
    """Return the checks of the frame's bytes from `offset` on."""
    words = struct.unpack(f"!{len(wanted) // 4}I", wanted)
    return [(_LOAD_WORD, offset + 4 * index, _ALL_BITS, word) for index, word in enumerate(words)]


def attach(sock: socket.socket, program: list[Instruction]) -> None:
    """Attach a program to `sock`."""
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(buffer)))
