# SPDX-License-Identifier: Apache-2.0
"""The compiled programs that are installed with us: their folders below `compiled`, by the least MTU of links."""

from __future__ import annotations

BUILDS = {8270: "jumbo", 1086: "."}
"""Those with longer packets first; the MTU is the length of the longest with its IPv4 header."""
LARGEST_BUILD, LEAST_MTU = max(BUILDS), min(BUILDS)
DEFAULT_MTU, MOST_MTU = 1500, 65535


def build_for(mtu: int) -> str:
    """The folder of the build with the longest packets that such links carry. `mtu`: `LEAST_MTU` or more."""
    return next(folder for needed, folder in BUILDS.items() if needed <= mtu)
