# SPDX-License-Identifier: Apache-2.0
"""Statistics of a process group's collectives: on the switch, in the host's memory, and by Gloo."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Carried:
    """The number of calls, and the bytes of this rank's tensors in them; on the wire there are fewer, without zeros."""

    calls: int = 0
    bytes: int = 0

    def add(self, nbytes: int) -> None:
        self.calls += 1
        self.bytes += nbytes

    def __str__(self) -> str:
        return f"{self.calls:,} calls of {self.bytes / 1e6:,.3f} MB"


@dataclass(frozen=True)
class Traffic:
    """The calls of a rank since the group was made, by kind: "all_reduce of float32".

    sent, received: bytes of UDP payloads between this rank and its switches, in all of the group's jobs.
    """

    switch: dict[str, Carried] = field(default_factory=dict)
    gloo: dict[str, Carried] = field(default_factory=dict)
    memory: dict[str, Carried] = field(default_factory=dict)
    """Calls that were carried out in the host's memory, since all ranks are on one host."""
    sent: int = 0
    received: int = 0

    def total(self, way: str) -> Carried:
        """Return the sum over all kinds of calls. way: "switch", "memory" or "gloo"."""
        each = getattr(self, way).values()
        return Carried(sum(one.calls for one in each), sum(one.bytes for one in each))

    def __str__(self) -> str:
        """Return a table with a line for each kind of call."""
        wire = f"; on the wire {self.sent / 1e6:,.3f} MB sent, {self.received / 1e6:,.3f} MB received"
        lines = []
        for title, way, more in (("switch", "switch", wire), ("host's memory", "memory", ""), ("Gloo", "gloo", "")):
            lines.append(f"{title}: {self.total(way)}{more}")
            lines += [f"  {what}: {one}" for what, one in sorted(getattr(self, way).items())]
        return "\n".join(lines)


class Counting:
    """The counters of a group. Any thread may call its methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ways: dict[str, dict[str, Carried]] = {"switch": {}, "memory": {}, "gloo": {}}

    def count(self, way: str, name: str, tensors: Any, nbytes: int | None = None) -> None:
        """Count a call. tensors: a list of tensors, or of lists. nbytes: their bytes, by default their own sum."""
        given = _flat(tensors)
        what = f"{name} of {str(given[0].dtype).removeprefix('torch.')}" if given else name
        size = sum(map(bytes_of, given)) if nbytes is None else nbytes
        with self._lock:
            self._ways[way].setdefault(what, Carried()).add(size)

    def traffic(self, sent: int, received: int) -> Traffic:
        with self._lock:
            copies = {
                way: {what: Carried(one.calls, one.bytes) for what, one in each.items()}
                for way, each in self._ways.items()
            }
        return Traffic(**copies, sent=sent, received=received)


def bytes_of(tensor: torch.Tensor) -> int:
    if tensor.is_sparse:
        return int(tensor._values().nbytes + tensor._indices().nbytes)
    return int(tensor.nbytes)


def _flat(tensors: Any) -> list[torch.Tensor]:
    return [one for each in tensors for one in (each if isinstance(each, (list, tuple)) else [each])]
