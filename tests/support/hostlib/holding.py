# SPDX-License-Identifier: Apache-2.0
"""Slot changes of a running job: its ranks hold their operations meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from p4reduce.engine.engine import Engine
from tests.support.hostlib.udp_switch import UdpSwitch
from tests.support.protocol.dealt_switch import move
from tests.support.waiting import wait_until


@dataclass
class Told:
    """The states that an engine has reported since it was asked to hold."""

    states: list[tuple[int, bool, int]] = field(default_factory=list)

    def __call__(self, operations: int, quiet: bool, first_seq: int) -> None:
        self.states.append((operations, quiet, first_seq))

    def wait(self, operations: int, quiet: bool) -> int:
        """Wait for a state, and return its first round."""
        wait_until(lambda: bool(self.states) and self.states[-1][:2] == (operations, quiet), f"{operations}, {quiet}")
        return self.states[-1][2]


def hold(engines: Sequence[Engine], operations: int = 0) -> list[Told]:
    told = [Told() for _ in engines]
    for engine, one in zip(engines, told, strict=True):
        engine.hold(operations, one)
    return told


def change(switch: UdpSwitch, engines: Sequence[Engine], slots: int, timeout: float = 20.0) -> None:
    """Change a job's slots as the controller does.

    All engines hold after the same operation, the switch gets the new slots, and the engines resume.
    """
    told = hold(engines)

    def first_seq() -> tuple[int, ...]:
        """Return the round from which all can resume, if all hold after the same operation.

        Otherwise return nothing, and ask the engines that are behind to hold later.
        """
        if not all(one.states for one in told):
            return ()
        states = [one.states[-1] for one in told]
        most = max(operations for operations, _, _ in states)
        for rank, (engine, (operations, _, _)) in enumerate(zip(engines, states, strict=True)):
            if operations < most:
                [told[rank]] = hold([engine], most)  # a new one, since the old one may still get a late report
        first = states[0][2]
        return (first,) if all(state == (most, True, first) for state in states) else ()

    [first] = wait_until(first_seq, lambda: [one.states for one in told], timeout)
    [job] = switch._jobs.values()
    move(job.model, slots, first)
    for engine in engines:
        engine.go_on(slots, first)
