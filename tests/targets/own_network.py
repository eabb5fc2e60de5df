# SPDX-License-Identifier: Apache-2.0
"""A network namespace with a veth pair, which this thread is in for a while."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

CLONE_NEWNET = 0x40000000
_NAMESPACE = "/proc/thread-self/ns/net"
_libc = ctypes.CDLL(None, use_errno=True)


START_UP_S = 10.0


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def wait_until_up(*links: str) -> None:
    """The kernel lets a link's queue work some time after the link was set up; until then it drops what is sent."""
    deadline = time.monotonic() + START_UP_S
    for link in links:
        while "state UP" not in (said := ip("-oneline", "link", "show", link)):
            assert time.monotonic() < deadline, f"{link} is not up within {START_UP_S:g} s: {said}"
            time.sleep(0.01)


@contextmanager
def own_network(pairs: int = 1) -> Iterator[None]:
    """Inside, `host1` is one end of a cable and `switch1` the other, and so on. Skips where that needs root."""
    before = os.open(_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.unshare(CLONE_NEWNET):
            pytest.skip(f"needs root, to make a network namespace ({os.strerror(ctypes.get_errno())})")
        try:
            ip("link", "set", "lo", "up")
            for number in range(1, pairs + 1):
                ip("link", "add", f"host{number}", "type", "veth", "peer", "name", f"switch{number}")
                for end in (f"host{number}", f"switch{number}"):
                    quiet = f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6"
                    if os.path.exists(quiet):
                        with open(quiet, "w") as file:
                            file.write("1")
                    ip("link", "set", end, "mtu", "9000", "arp", "off", "up")
            wait_until_up(*(f"{end}{number}" for number in range(1, pairs + 1) for end in ("host", "switch")))
            yield
        finally:
            if _libc.setns(before, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(before)
