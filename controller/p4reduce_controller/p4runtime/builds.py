# SPDX-License-Identifier: Apache-2.0
"""The compiled programs that are installed with this package, and the links that each is for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from p4reduce.transport.frames import IPV4_AND_UDP_BYTES, ip_and_udp_bytes

DEFAULT_MTU, MOST_MTU = 1500, 65535


@dataclass(frozen=True)
class Build:
    """A compiled program: its folder below `compiled`, and the shape of its packets.

    `mtu`: the smallest MTU of links that carry its longest packet over IPv4.
    """

    folder: str
    mtu: int
    lanes: int
    block_size: int


BUILDS = (Build("jumbo", 8270, lanes=8, block_size=256), Build(".", 1086, lanes=4, block_size=64))
"""Those with longer packets first."""
LARGEST_BUILD, LEAST_MTU = BUILDS[0].mtu, BUILDS[-1].mtu


def build_for(mtu: int) -> Build:
    """Return the build with the longest packets that links of this MTU carry over IPv4. `mtu`: `LEAST_MTU` or more."""
    return next(build for build in BUILDS if build.mtu <= mtu)


def mtu_over_ipv4(mtu: int, ips: Iterable[str]) -> int:
    """Return the MTU that carries over IPv4 the packets that `mtu` carries to all of these addresses."""
    return mtu - max(map(ip_and_udp_bytes, ips)) + IPV4_AND_UDP_BYTES
