# SPDX-License-Identifier: Apache-2.0
"""What an admitted member that sends what it should not can do to a job, on the P4 program and on the C code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random

import pytest

from p4reduce_targets import native, sim
from p4reduce_targets.dataplane import DataPlane
from tests.support.dataplane import frames
from tests.support.dataplane.frames import PARENT, Host
from tests.support.dataplane.jobs import Job, Member
from tests.support.dataplane.p4runtime import Program
from tests.support.dataplane.switch import OUTCOMES, SWITCH
from tests.support.protocol.faulty_member import FAULTS, FaultyMember, check_ends, membership_of, run_case, run_cases

from .direct import Direct

COMPILED = Path(__file__).resolve().parents[2] / "p4src" / "compiled"
SLOTS = 2
ABOVE = Host("02:00:00:00:97:01", "10.97.0.1", 6000)


class Outcomes(Mapping[int, int]):
    """The switch's counter."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def __getitem__(self, index: int) -> int:
        return self._plane.read_counter(OUTCOMES, index).packets

    def __len__(self) -> int:
        return 16

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(range(16))


class OnDataPlane:
    """A data plane with one job, as the simulation has its switches. `index`: as which worker of its parent."""

    def __init__(self, plane: DataPlane, program: Program, workers: int, index: int | None = None) -> None:
        direct = Direct("direct", plane, program)
        direct.own_address(SWITCH)
        parent = None if index is None else Member(direct.ports[-1], ABOVE)
        self.plane = plane
        self.job = Job(direct, workers, slots=SLOTS, parent=parent, index=index or 0).start()  # type: ignore[arg-type]
        self.outcomes = Outcomes(plane)
        self._receivers = {(m.port, m.host.udp_port): worker for worker, m in enumerate(self.job.members)}
        if parent is not None:
            self._receivers[parent.port, ABOVE.udp_port] = PARENT

    def query(self, half: int) -> tuple[int, int]:
        state = self.job.switch.query(half)
        return state.seq, state.bitmap

    def receive(self, sender: int, payload: bytes) -> tuple[tuple[int, ...], bytes] | None:
        member = self.job.member(sender)
        receivers, answer = [], b""
        for port, frame in self.plane.process(member.port, frames.udp_frame(member.host, SWITCH, payload)):
            to = self._receivers.get((port, int.from_bytes(frame[36:38], "big")))
            if to is not None:
                receivers.append(to)
                answer = frame[42 : 34 + int.from_bytes(frame[38:40], "big")]
        return (tuple(receivers), answer) if receivers else None


@pytest.mark.parametrize("tree", [False, True], ids=["one switch", "tree"])
@pytest.mark.parametrize(("load", "faults"), [(native.load, 1400), (sim.load, 400)], ids=["native", "sim"])
def test_never_another_sum(load: Callable[[bytes], DataPlane], faults: int, tree: bool) -> None:
    program = Program(COMPILED / "p4info.txtpb", COMPILED / "p4reduce.json")

    @cache
    def switch(workers: int, index: int | None = None) -> OnDataPlane:
        return OnDataPlane(load(program.config), program, workers, index)

    def case(seed: int) -> FaultyMember:
        size = 4 if tree else Random(seed).randint(2, 4)
        leaves = [switch(2, 0), switch(2, 1)] if tree else []
        root = switch(2 if tree else size)
        for one in (root, *leaves):
            one.job.reset()
        racks = ((0, 1), (2, 3)) if tree else ()
        membership = membership_of(size, program.lanes, program.block_size, SLOTS)
        return run_case(seed, membership, root, racks=racks, leaves=leaves)

    check_ends(run_cases(case, FAULTS or faults))
