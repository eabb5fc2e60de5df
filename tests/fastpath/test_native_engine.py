# SPDX-License-Identifier: Apache-2.0
"""The engine's tests again, with the C engine in the Python engine's place, and what is its own."""

from __future__ import annotations

import contextlib
import socket
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from p4reduce.fastpath import structures as c
from p4reduce.protocol import Operation
from p4reduce.protocol.constants import ECN_CE
from p4reduce.transport import open_transport
from tests.support.hostlib import engines
from tests.support.hostlib.engines import NativeRank, reduce, sparse
from tests.support.hostlib.udp_switch import UdpSwitch
from tests.support.loopbacks import LOOPBACKS, set_traffic_class
from tests.support.waiting import wait_until

ranks = partial(engines.ranks, NativeRank)


class SlowSwitch(UdpSwitch):
    """A switch whose answers come singly, as over a link that takes so long for each packet."""

    SECONDS = 0.0004

    def _take(self, payload: bytes, address: tuple[str, int]) -> None:
        time.sleep(self.SECONDS)
        super()._take(payload, address)


def wake_ups() -> int:
    """Return how often the engines' threads have waited for something so far."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            if (task / "comm").read_text().strip() == "gatherer":
                status = (task / "status").read_text()
                found += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return found


def test_a_wake_up_takes_several_answers_of_a_slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeRank, "name", "gatherer")
    switch = SlowSwitch()
    with contextlib.closing(switch), ranks(switch, 2, slots=64) as everyone:
        for rank in everyone:
            rank.submit(np.ones(4000 * 64, np.float32), timeout=60)
        for rank in everyone:
            wait_until(lambda rank=rank: bool(rank.ended), "both sums", 60)  # type: ignore[misc]
            assert rank.ended == [("sum", None)]
        received = sum(rank.engine.stats.packets_received for rank in everyone)
        assert received >= 2 * 1000
        # One for each would be 1.03 to 1.08; gathered, 0.2 on an idle machine and 0.64 on the busiest seen.
        assert wake_ups() < 0.9 * received, (wake_ups(), received)


@pytest.mark.parametrize("ip", LOOPBACKS)
@pytest.mark.parametrize("ecn", range(4))
def test_marks(ip: str, ecn: int) -> None:
    with contextlib.closing(UdpSwitch(ip)) as switch, ranks(switch, 2) as everyone:
        set_traffic_class(switch._socket, 0x28 | ecn)
        reduce(everyone, [sparse(1), sparse(2)])
        for rank in everyone:
            assert (rank.engine.stats.marks > 0) == (ecn == ECN_CE)
            assert rank.engine.link() == "UDP, GSO, GRO"  # type: ignore[attr-defined]


SO_NO_CHECK = 11


class CountingSwitch(UdpSwitch):
    """A switch that counts the packets that come."""

    def __init__(self) -> None:
        self.came = 0
        super().__init__()

    def _take(self, payload: bytes, address: tuple[str, int]) -> None:
        super()._take(payload, address)
        self.came += 1


def test_a_kernel_that_takes_no_super_packets() -> None:
    """Such a kernel returns EINVAL, as for sockets without checksums. Nothing is lost, and packets go out singly."""
    switch = CountingSwitch()
    with contextlib.closing(switch):
        transport = open_transport("udp", switch.endpoint)
        with socket.fromfd(transport.fileno(), socket.AF_INET, socket.SOCK_DGRAM) as same:
            same.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
        with ranks(switch, 1, [transport], slots=100) as [rank]:
            reduce([rank], [np.ones(64 * 1000, np.float32)])
            assert rank.engine.link() == "UDP, GRO"
            sent = 1 + rank.engine.stats.packets_sent  # with the HELLO, which the engine does not count
            wait_until(lambda: switch.came == sent, lambda: f"{sent} packets, of which {switch.came} came")


def test_no_memory_for_an_operation_is_a_failure(switch: UdpSwitch) -> None:
    """The engine fails, as Python's does, because the other ranks wait for this one."""
    with ranks(switch, 1) as [rank]:

        def refuse(_handle: object, _request: object, _operation: object, error: c.Error) -> int:
            error.status, error.message = c.NO_MEMORY, b"no memory for an operation of 3 blocks"
            return c.NO_MEMORY

        library = rank.engine._library  # type: ignore[attr-defined]
        rank.engine._library = SimpleNamespace(**{**vars(library), "p4reduce_submit": refuse})  # type: ignore[attr-defined]
        ends: list[BaseException | None] = []
        rank.engine.submit(Operation(np.ones(3, np.float32)), name="it", timeout=10, on_end=ends.append)
        assert [type(end) for end in ends] == [MemoryError]
        assert isinstance(rank.engine.failure, MemoryError)


def peak_memory() -> int:
    """Return the peak of this process's memory since `forget_peak`, in bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


def forget_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def test_takes_little_memory_besides_the_tensor(switch: UdpSwitch) -> None:
    """The limit is 64 MiB and a twentieth of the tensor, of which an engine takes a small part."""
    data = np.empty(64 << 20, np.float32)  # 256 MiB
    data.fill(0)
    data.reshape(-1, 64)[::1000] = 1
    forget_peak()
    before = peak_memory()
    with ranks(switch, 1, slots=512) as [rank]:
        rank.submit(data, timeout=60)
        rank.wait()
        assert rank.ended == [("sum", None)]
        assert data.sum() == 64 * -(-(64 << 20) // 64_000)
        assert peak_memory() - before < (64 << 20) + data.nbytes // 20
