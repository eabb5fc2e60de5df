# SPDX-License-Identifier: Apache-2.0
"""Frames as they are on the wire: switches off what makes Linux hand over several as one."""

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
    """Turn segmentation and reassembly offloads of `interface` off. What it lacks, or forbids us, stays as it is.

    A switch that gets 64 KB frames sees none of the packets in them. And libpcap, on which BMv2's ports are built,
    keeps room for about 30 frames in place of a thousand when they may be so large.

    checksums: those of what is sent too, for a host whose frames are not for the aggregator alone: a veth pair leaves
    them out, and a switch passes the frames on as they are.

    sock: a socket of the interface's network namespace; without one, the calling thread's is meant.
    """
    with nullcontext(sock) if sock is not None else socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in (ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO, *([ETHTOOL_STXCSUM] if checksums else [])):
            value = array.array("I", [command, 0])
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            with suppress(OSError):
                fcntl.ioctl(control, SIOCETHTOOL, request)
