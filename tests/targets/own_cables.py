# SPDX-License-Identifier: Apache-2.0
"""A network namespace with bare cables, which this thread is in for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.own_network import Namespace, ip, wait_until_up


@contextmanager
def own_cables(pairs: int = 1) -> Iterator[None]:
    """Inside, `host1` is one end of a cable and `switch1` the other, and so on. Skips where that needs root."""
    with closing(Namespace()) as namespace, namespace.entered():
        for number in range(1, pairs + 1):
            ends = (f"host{number}", f"switch{number}")
            ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
            for end in ends:
                quiet = Path(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6")
                if quiet.exists():
                    quiet.write_text("1")
                ip("link", "set", end, "mtu", "9000", "arp", "off", "up")
            wait_until_up(*ends)
        yield
