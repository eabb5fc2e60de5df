# SPDX-License-Identifier: Apache-2.0
"""Turning off the offloads by which Linux hands several frames over as one."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from contextlib import nullcontext, suppress

SIOCETHTOOL = 0x8946
# From <linux/ethtool.h>: segmentation (TSO, GSO) and its reverse on the way in (GRO); checksums of what is sent.
ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO = 0x1F, 0x24, 0x2C
ETHTOOL_STXCSUM = 0x17


def switch_off(interface: str, *, checksums: bool = False, sock: socket.socket | None = None) -> None:
    """Turn off segmentation and reassembly offloads of `interface`, except those that it lacks or may not change.

    A switch that gets frames of 64 KB does not see the packets in them. Also, libpcap, which BMv2 uses for its ports,
    has buffers for about 30 such frames, but for a thousand of ordinary size.

    checksums: also turn off checksum offload for sent frames. Frames on a veth pair have no valid checksum otherwise,
    and the switch forwards them without one to hosts beyond.

    sock: a socket in the interface's network namespace. By default, it is the namespace of the calling thread.
    """
    with nullcontext(sock) if sock is not None else socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in (ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO, *([ETHTOOL_STXCSUM] if checksums else [])):
            value = array.array("I", [command, 0])
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            with suppress(OSError):
                fcntl.ioctl(control, SIOCETHTOOL, request)
