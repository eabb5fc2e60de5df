# SPDX-License-Identifier: Apache-2.0
"""Frames as they are on the wire: switches off what makes Linux hand over several as one."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from contextlib import suppress

SIOCETHTOOL = 0x8946
# From <linux/ethtool.h>: segmentation (TSO, GSO) and its reverse on the way in (GRO).
ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO = 0x1F, 0x24, 0x2C


def switch_off(interface: str) -> None:
    """Turn segmentation and reassembly offloads of `interface` off. What it lacks, or forbids us, stays as it is.

    A switch that gets 64 KB frames sees none of the packets in them. And libpcap, on which BMv2's ports are built,
    keeps room for about 30 frames in place of a thousand when they may be so large.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in (ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO):
            value = array.array("I", [command, 0])
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            with suppress(OSError):
                fcntl.ioctl(control, SIOCETHTOOL, request)
