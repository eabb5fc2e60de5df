# SPDX-License-Identifier: Apache-2.0
"""Play scenarios: `python -m tests.simulation --seed 7` plays one, `--minutes 5` as many as fit."""

from __future__ import annotations

import argparse
import sys
import time

from tests.support import mutants  # noqa: F401 - before the code that it changes, if P4REDUCE_MUTANT says so

from tests.simulation.scenario import Result, play  # isort: skip
from tests.simulation.variations import VARIATIONS  # isort: skip

clock = time.perf_counter


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--seconds", type=float, default=0.0, help="simulated seconds after which to end")
    parser.add_argument("--minutes", type=float, default=0.0, help="minutes of real time after which to end")
    parser.add_argument("--until-failure", action="store_true", help="go on until a seed fails")
    parser.add_argument("--idle", type=float, default=40_000.0, help="mean idle seconds of a scenario")
    parser.add_argument("--with", nargs="+", default=[], dest="variations", choices=VARIATIONS, help="variations")
    parser.add_argument("--verbose", action="store_true", help="show every event, not only the last ones of a failure")
    parser.add_argument("--lines", type=int, default=60, help="events to show of a failure")
    options = parser.parse_args()
    begun, simulated, busy, steps, failed = clock(), 0.0, 0.0, 0, []
    seed = options.seed
    while True:
        result = play(seed, print if options.verbose else None, idle=options.idle, variations=options.variations)
        simulated, busy, steps = simulated + result.seconds, busy + result.busy, steps + result.steps
        if result.error is not None:
            failed.append(seed)
            show(result, options.lines)
            if options.until_failure:
                break
        seed += 1
        enough = seed - options.seed >= options.count
        if options.seconds or options.minutes or options.until_failure:
            enough = bool(options.seconds) and simulated >= options.seconds
            enough = enough or (bool(options.minutes) and clock() - begun >= 60 * options.minutes)
        if enough:
            break
    wall = clock() - begun
    print(
        f"{seed - options.seed} scenarios, {simulated:,.0f} simulated seconds, {busy:,.0f} of them with controllers, "
        f"{steps:,} steps in {wall:.0f} s: {simulated / wall:,.0f} simulated seconds a second; "
        f"failed: {failed or 'none'}"
    )
    if len(failed) <= 1 and seed - options.seed == 1:
        print(f"digest {result.digest}")
    return 1 if failed else 0


def show(result: Result, lines: int) -> None:
    for line in result.tail[-lines:] if lines else ():
        print(line)
    print(f"seed {result.seed} failed at step {result.steps}: {type(result.error).__name__}: {result.error}")
    print(f"again: python -m tests.simulation --seed {result.seed}{result.variations}")


if __name__ == "__main__":
    sys.exit(main())
