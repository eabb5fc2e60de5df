# SPDX-License-Identifier: Apache-2.0
"""A fuzzer that sends the same random traffic to two data planes, and compares every byte of their outputs.

python -m tests.support.dataplane.fuzz --left sim --right bmv2 --frames 10000 --seed 1
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from .switch import COMPILED, FORGERIES, JOBS, LOSSES_IN, LOSSES_OUT, OUTCOMES, Outputs, Switch
from .targets import TARGETS, Unavailable
from .traffic import Setup, Step, Traffic

REPORT_EVERY_S = 5.0


@dataclass(frozen=True)
class Difference:
    """The first difference between the two data planes."""

    seed: int
    index: int
    what: str
    left: str
    right: str

    def __str__(self) -> str:
        return (
            f"seed {self.seed}, step {self.index} (again with --seed {self.seed} --frames {self.index + 1}):\n"
            f"{self.what}\nleft\n{self.left}\nright\n{self.right}"
        )


@dataclass(frozen=True)
class Report:
    """The result of a run. `difference` is None if both data planes always did the same."""

    frames: int
    seconds: float
    outputs: int
    outcomes: dict[str, int]
    difference: Difference | None

    def __str__(self) -> str:
        if self.difference is not None:
            return f"DIFFERENT after {self.frames} frames\n{self.difference}"
        return (
            f"no difference: {self.frames} frames in {self.seconds:.1f} s, {self.outputs} frames came out; outcomes "
            + ", ".join(f"{name} {count}" for name, count in sorted(self.outcomes.items()))
        )


def counters(switch: Switch) -> list[object]:
    """Return packets and bytes of every cell of every counter, and of each member of a job."""
    cells = [switch.client.read_counters(name) for name in (OUTCOMES, LOSSES_IN, LOSSES_OUT, FORGERIES)]
    return [*cells, switch.client.read_direct_counters(JOBS)]


def state(switch: Switch, setup: Setup) -> list[object]:
    """Return the slot halves and the counters. Sentinels count alike on both sides."""
    return [*(switch.query(half) for half in setup.halves), *counters(switch)]


def compare(
    left: Switch,
    right: Switch,
    frames: int,
    seed: int,
    progress: Callable[[str], object] = str,
    *,
    traffic_of: type[Traffic] = Traffic,
    state: Callable[[Switch, Setup], list[object]] = state,
) -> Report:
    """Run `frames` steps on both switches, until the first difference.

    state: a function that returns the state to compare at the end.
    """
    tagged = left.knows_vlans and right.knows_vlans
    ipv6 = left.knows_ipv6 and right.knows_ipv6
    setups = {switch: Setup(switch, tagged, ipv6) for switch in (left, right)}
    for switch, setup in setups.items():
        setup.install(switch)
    traffic = traffic_of(setups[left], seed, left.lanes, left.block_size, left.halves)
    started = reported = time.monotonic()
    heard = 0
    difference: Difference | None = None
    done = 0
    for done in range(1, frames + 1):
        step = next(traffic)
        results = [outcome(switch, step) for switch in (left, right)]
        if results[0] != results[1]:
            difference = Difference(seed, done - 1, step.what, *(map(describe, results)))
            break
        if isinstance(results[0], Outputs):
            heard += sum(map(len, results[0].ports.values())) + len(results[0].packet_ins)
        if time.monotonic() - reported > REPORT_EVERY_S:
            reported = time.monotonic()
            progress(f"{done} of {frames} frames, {done / (reported - started):.0f} a second")
    outcomes: dict[str, int] = {}
    if difference is None:
        for one, other in zip(*(state(switch, setups[switch]) for switch in (left, right)), strict=True):
            if one != other:
                difference = Difference(seed, done - 1, "state at the end", f"  {one}", f"  {other}")
                break
        outcomes = left.counts()
    return Report(done, time.monotonic() - started, heard, outcomes, difference)


def outcome(switch: Switch, step: Step) -> Outputs | str:
    """Return the outputs of a step, or the error if the switch has failed."""
    try:
        return step.apply(switch).sorted()
    except (RuntimeError, TimeoutError) as error:
        return f"  {switch.name}: {type(error).__name__}: {error}"


def describe(result: Outputs | str) -> str:
    return result if isinstance(result, str) else result.describe()


def run(
    left: str,
    right: str,
    frames: int,
    seed: int,
    *,
    left_program: Path = COMPILED,
    right_program: Path = COMPILED,
    progress: Callable[[str], object] = str,
) -> Report:
    """Start both targets, compare them, and stop them. Raises Unavailable if one cannot run on this machine."""
    with ExitStack() as stack:
        switches = [stack.enter_context(Switch(*one)) for one in ((left, left_program), (right, right_program))]
        return compare(*switches, frames, seed, progress)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.dataplane.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--left", choices=TARGETS, default="sim")
    parser.add_argument("--right", choices=TARGETS, default="bmv2")
    parser.add_argument("--left-program", type=Path, default=COMPILED, help="folder with p4reduce.json, p4info.txtpb")
    parser.add_argument("--right-program", type=Path, default=COMPILED)
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        report = run(
            options.left,
            options.right,
            options.frames,
            options.seed,
            left_program=options.left_program,
            right_program=options.right_program,
            progress=lambda text: print(text, flush=True),
        )
    except Unavailable as missing:
        print(missing, file=sys.stderr)
        return 2
    print(report)
    return 0 if report.difference is None else 1


if __name__ == "__main__":
    sys.exit(main())
