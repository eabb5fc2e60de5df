# SPDX-License-Identifier: Apache-2.0
"""The engine's tests again, with the C engine in the Python engine's place, and what is its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import test_engine as python_engine
from udp_switch import UdpSwitch, udp_switch

from p4reduce.fastpath.engine import NativeEngine
from p4reduce.protocol import Membership, Stats, Worker
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
