# SPDX-License-Identifier: Apache-2.0
"""The engine's tests again, with the C engine in the Python engine's place, and what is its own."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import test_engine as python_engine
from udp_switch import UdpSwitch, members, udp_switch
from waiting import wait_until

from p4reduce.errors import P4ReduceError
from p4reduce.fastpath import structures as c
from p4reduce.fastpath.engine import NativeEngine
from p4reduce.protocol import Membership, Operation, Stats, Worker
from p4reduce.protocol.halves import BFLOAT16, narrowed
from p4reduce.protocol.numbers import reference_allreduce
from p4reduce.transport import Transport, open_transport

# Those that look into the Python engine, or put a Python transport under it.
OF_PYTHON = {
    "test_faults_of_the_network_change_nothing",
    "test_an_error_of_the_worker_ends_everything",
    "test_packets_wait_while_the_kernels_buffer_is_full",
}
SHARED = [name for name in dir(python_engine) if name.startswith("test_") and name not in OF_PYTHON]


class WorkerOfEngine:
    """What tests look at."""

    def __init__(self, membership: Membership, engine: NativeEngine) -> None:
        self._membership, self._engine = membership, engine

    @property
    def stats(self) -> Stats:
        return self._engine.stats

    def hello(self, nonce: int) -> bytes:
        return Worker(self._membership).hello(nonce)


class NativeRank(python_engine.Rank):
    def __init__(self, switch: UdpSwitch, membership: Membership, transport: Transport | None = None) -> None:
        transport = transport or open_transport("udp", switch.place)
        self.engine = NativeEngine(transport, membership, switch=str(switch.place))  # type: ignore[assignment]
        self.worker = WorkerOfEngine(membership, self.engine)  # type: ignore[assignment, arg-type]
        self.ended: list[tuple[str, BaseException | None]] = []


@pytest.fixture
def switch() -> Iterator[UdpSwitch]:
    with udp_switch() as switch:
        yield switch


@pytest.fixture(autouse=True)
def _native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_engine, "Rank", NativeRank)


@pytest.mark.parametrize("name", SHARED, ids=lambda name: name.removeprefix("test_"))
def test_as_in_python(name: str, switch: UdpSwitch) -> None:
    getattr(python_engine, name)(switch)


class FaultySwitch(UdpSwitch):
    """Loses, duplicates and reorders what it receives and what it sends."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.late: list[tuple[bytes, tuple[str, int]]] = []
        super().__init__()

    def _take(self, payload: bytes, address: tuple[str, int]) -> None:
        if self.random.random() < 0.1:
            self.late.append((payload, address))
            return
        for _ in range(self.random.choice([0, *[1] * 20, 2, 2])):
            super()._take(payload, address)
        if len(self.late) > 3:
            super()._take(*self.late.pop(self.random.randrange(4)))


class FaultySocket:
    def __init__(self, sock: socket.socket, seed: int) -> None:
        self._socket, self._random = sock, random.Random(seed)

    def sendto(self, payload: bytes, address: tuple[str, int]) -> None:
        for _ in range(self._random.choice([0, *[1] * 20, 2, 2])):
            self._socket.sendto(payload, address)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


@pytest.mark.parametrize("seed", range(3))
def test_faults_of_the_network_change_nothing(seed: int) -> None:
    switch = FaultySwitch(seed)
    switch._socket = FaultySocket(switch._socket, seed)  # type: ignore[assignment]
    memberships = members(3)
    switch.admit(memberships[0])
    everyone = [NativeRank(switch, membership) for membership in memberships]
    try:
        for number in range(5):
            arrays = [python_engine.sparse(seed * 100 + number * 3 + rank) for rank in range(3)]
            expected = reference_allreduce(arrays)
            for rank, array in zip(everyone, arrays, strict=True):
                rank.submit(array)
            for rank, array in zip(everyone, arrays, strict=True):
                rank.wait(number + 1)
                assert rank.ended[-1] == ("sum", None)
                np.testing.assert_array_equal(array.view(np.int32), expected.view(np.int32))
        assert sum(rank.worker.stats.retransmissions for rank in everyone) > 0
    finally:
        for rank in everyone:
            rank.engine.close(python_engine.CLOSED)
        switch.close()


@pytest.mark.parametrize("offload", ["", "none"])
def test_many_slots_share_super_packets(switch: UdpSwitch, monkeypatch: pytest.MonkeyPatch, offload: str) -> None:
    """More packets of one length than a super-packet takes, then of several lengths; and the same one by one."""
    monkeypatch.setenv("P4REDUCE_OFFLOAD", offload)
    memberships = members(2, slots=150)
    switch.admit(memberships[0])
    everyone = [NativeRank(switch, membership) for membership in memberships]
    try:
        for rank in everyone:
            rank.engine._transport.send([rank.worker.hello(1)])
        for number, density in enumerate((1.0, 0.5)):
            generator = np.random.default_rng(number)
            arrays = [generator.standard_normal((1500, 64)).astype(np.float32) for _ in everyone]
            for array in arrays:
                array[generator.random(1500) >= density] = 0
            expected = reference_allreduce([array.ravel() for array in arrays])
            for rank, array in zip(everyone, arrays, strict=True):
                rank.submit(array.reshape(-1))
            for rank, array in zip(everyone, arrays, strict=True):
                rank.wait(number + 1)
                assert rank.ended[-1] == ("sum", None)
                np.testing.assert_array_equal(array.reshape(-1), expected)
        for rank in everyone:
            assert rank.engine.link() == ("UDP" if offload else "UDP, GSO, GRO")
            assert rank.worker.stats.foreign == 0
    finally:
        for rank in everyone:
            rank.engine.close(python_engine.CLOSED)


class SlowSwitch(UdpSwitch):
    """Answers come singly, as over a link that takes so long for a packet."""

    SECONDS = 0.0004

    def _take(self, payload: bytes, address: tuple[str, int]) -> None:
        time.sleep(self.SECONDS)
        super()._take(payload, address)


def wake_ups() -> int:
    """How often the engines' threads have waited for something so far."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == "gatherer":
            status = (task / "status").read_text()
            found += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return found


def test_a_wake_up_takes_several_answers_of_a_slow_link() -> None:
    switch = SlowSwitch()
    memberships = members(2, slots=64)
    switch.admit(memberships[0])
    engines = [
        NativeEngine(open_transport("udp", switch.place), membership, switch=str(switch.place), name="gatherer")
        for membership in memberships
    ]
    ends: list[BaseException | None] = []
    try:
        for engine, membership in zip(engines, memberships, strict=True):
            engine._transport.send([Worker(membership).hello(1)])
            operation = Operation(np.ones(4000 * 64, np.float32))
            engine.submit(operation, name="sum", timeout=60, on_end=ends.append)
        wait_until(lambda: len(ends) == 2, "both sums", 60)
        assert ends == [None, None]
        received = sum(engine.stats.packets_received for engine in engines)
        assert received >= 2 * 1000
        assert wake_ups() < received / 2, (wake_ups(), received)
    finally:
        for engine in engines:
            engine.close(python_engine.CLOSED)
        switch.close()


def test_subnormals_are_kept_where_the_program_drops_them(switch: UdpSwitch) -> None:
    """New threads begin with the floating-point mode of the one that makes them."""
    torch = pytest.importorskip("torch", reason="needs torch")
    data = np.full(100, 1e-40, np.float32)
    expected = reference_allreduce([data])
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor keeps them always")
    try:
        with python_engine.ranks(switch, 1) as [rank]:
            rank.submit(data)
            rank.wait()
    finally:
        torch.set_flush_denormal(False)
    assert data.tobytes() == expected.tobytes()
    assert data[0] != 0


SO_NO_CHECK = 11


def test_a_kernel_that_takes_no_super_packets(switch: UdpSwitch) -> None:
    """It says EINVAL when it is given one, as for sockets without checksums: nothing is lost, all goes on singly."""
    membership = members(1, slots=100)[0]
    switch.admit(membership)
    transport = open_transport("udp", switch.place)
    with socket.fromfd(transport.fileno(), socket.AF_INET, socket.SOCK_DGRAM) as same:
        same.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
    rank = NativeRank(switch, membership, transport)
    try:
        rank.submit(np.ones(64 * 1000, np.float32))
        rank.wait()
        assert rank.ended == [("sum", None)]
        assert rank.engine.link() == "UDP, GRO"
        assert rank.worker.stats.retransmissions < rank.worker.stats.rounds / 4  # no more than a busy machine makes
    finally:
        rank.engine.close(python_engine.CLOSED)


def test_no_memory_for_an_operation_is_a_failure(switch: UdpSwitch) -> None:
    """As in Python: the other ranks wait for this one."""
    [membership] = members(1)
    switch.admit(membership)
    rank = NativeRank(switch, membership)
    try:

        def refuse(_handle: object, _request: object, _operation: object, error: c.Error) -> int:
            error.status, error.message = c.NO_MEMORY, b"no memory for an operation of 3 blocks"
            return c.NO_MEMORY

        library = rank.engine._library  # type: ignore[attr-defined]
        rank.engine._library = SimpleNamespace(**{**vars(library), "p4reduce_submit": refuse})  # type: ignore[attr-defined]
        ends: list[BaseException | None] = []
        rank.engine.submit(Operation(np.ones(3, np.float32)), name="it", timeout=10, on_end=ends.append)
        assert [type(end) for end in ends] == [MemoryError]
        assert isinstance(rank.engine.failure, MemoryError)
    finally:
        rank.engine.close(P4ReduceError("closed"))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=["float32", "float16", "bfloat16"])
def test_averages_have_the_references_bits(switch: UdpSwitch, dtype: npt.DTypeLike) -> None:
    with python_engine.ranks(switch, 3) as everyone:
        generator = np.random.default_rng(5)
        arrays = [generator.standard_normal(3000).astype(np.float32) for _ in everyone]
        for array, size in zip(arrays, (1.0, 1e-41, 3e37), strict=True):
            array[100:900] *= np.float32(size)
            array[1000] = np.nan if size == 1 else 1
            array[2000:2300] = 0
        arrays = [narrowed(array, np.dtype(dtype)) for array in arrays]
        expected = reference_allreduce(arrays, "avg")
        ended: list[BaseException | None] = []
        operations = [Operation(array, reduce_op="average", divisor=3) for array in arrays]
        for rank, operation in zip(everyone, operations, strict=True):
            rank.engine.submit(operation, name="average", timeout=20, on_end=ended.append)
        wait_until(lambda: len(ended) == 3, "the operations to end", 30)
        assert ended == [None] * 3
        for operation in operations:
            assert operation.data.tobytes() == expected.tobytes()


def peak_memory() -> int:
    """Bytes of this process's memory at most, since `forget_peak`."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


def forget_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def test_takes_little_memory_besides_the_tensor(switch: UdpSwitch) -> None:
    """At most 64 MiB and a twentieth of the tensor, of which an engine takes a small part."""
    membership = members(1, slots=512)[0]
    switch.admit(membership)
    data = np.empty(128 << 20, np.float32)  # 512 MiB
    data.fill(0)
    data.reshape(-1, 64)[::1000] = 1
    forget_peak()
    before = peak_memory()
    rank = NativeRank(switch, membership)
    try:
        rank.submit(data, timeout=60)
        rank.wait()
        assert rank.ended == [("sum", None)]
        assert data.sum() == 64 * -(-(128 << 20) // 64_000)
        assert peak_memory() - before < (64 << 20) + data.nbytes // 20
    finally:
        rank.engine.close(python_engine.CLOSED)
