# SPDX-License-Identifier: Apache-2.0
"""A router in the kernel that marks IP packets (CE), as one with a long queue does: a BPF program at an interface.

Queueing disciplines that mark, such as RED and CoDel, are modules that many kernels lack.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import socket
import struct
from collections.abc import Iterator

import pytest

_BPF = {"x86_64": 321, "aarch64": 280}  # the system call's number
_PROG_LOAD, _LINK_CREATE = 5, 28
_SCHED_CLS, _TCX_EGRESS = 3, 47
_PRANDOM_U32, _SKB_ECN_SET_CE = 7, 97

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def marks(interface: str, share: float = 1.0) -> Iterator[None]:
    """Mark a random share of the packets with ECT that leave by an interface of this thread's network namespace.

    Skips the test if the kernel or the rights do not suffice.
    """
    program = _load(share)
    try:
        link = _bpf(_LINK_CREATE, struct.pack("=IIII", program, socket.if_nametoindex(interface), _TCX_EGRESS, 0))
        try:
            yield
        finally:
            os.close(link)
    finally:
        os.close(program)


def _load(share: float) -> int:
    code = b"".join([
        _instruction(0xBF, 6, 1),  # r6 = the packet
        _instruction(0x85, constant=_PRANDOM_U32),
        _instruction(0x77, 0, constant=1),  # r0 >>= 1, so that the constant below is positive
        _instruction(0x25, 0, offset=2, constant=int(share * (2**31 - 1))),  # if r0 is larger, skip the next two
        _instruction(0xBF, 1, 6),
        _instruction(0x85, constant=_SKB_ECN_SET_CE),
        _instruction(0xB7, 0, constant=-1),  # the packet goes on
        _instruction(0x95),
    ])  # fmt: skip
    instructions, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    addresses = ctypes.addressof(instructions), ctypes.addressof(licence)
    return _bpf(_PROG_LOAD, struct.pack("=IIQQIIQ", _SCHED_CLS, len(code) // 8, *addresses, 0, 0, 0))


def _instruction(code: int, to: int = 0, source: int = 0, *, offset: int = 0, constant: int = 0) -> bytes:
    return struct.pack("=BBhi", code, source << 4 | to, offset, constant)


def _bpf(command: int, attributes: bytes) -> int:
    number = _BPF.get(platform.machine())
    if number is None:
        pytest.skip(f"needs the number of the system call bpf on {platform.machine()}")
    descriptor: int = _libc.syscall(number, command, ctypes.create_string_buffer(attributes), len(attributes))
    if descriptor < 0:
        pytest.skip(f"needs BPF programs at interfaces (Linux 6.6, root): {os.strerror(ctypes.get_errno())}")
    return descriptor
