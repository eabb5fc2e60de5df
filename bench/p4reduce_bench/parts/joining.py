# SPDX-License-Identifier: Apache-2.0
"""How long jobs take from their ranks' joining until they are ready, many at a time, by tenants with tokens.

Each job's ranks begin at once, and leave as soon as all are ready. With --flood, one more tenant asks for jobs and for
the status as fast as it can meanwhile.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import tempfile
from pathlib import Path
from typing import Any

from p4reduce_bench.parts.stack import start_switch
from p4reduce_bench.processes.children import Family

TIMEOUT_S = 280.0
TENANTS = ("red", "green", "blue")
FLOOD = "flood"
USERS = """\
[quotas]
slots = 192
jobs = 16
{users}
"""


def measure(jobs: int, at_a_time: int, ranks: int, processes: int, *, users: bool, flood: bool) -> dict[str, Any]:
    """Seconds of every job, and what was refused to the flood. Raises ChildFailed if a process fails."""
    with Family() as family, tempfile.TemporaryDirectory() as folder:
        options: list[str] = []
        tokens = dict.fromkeys(TENANTS, "")
        if users:
            from p4reduce_controller.tenants.users import digest

            tokens = {tenant: secrets.token_urlsafe(32) for tenant in (*TENANTS, FLOOD)}
            entries = "".join(f'[users.{name}]\ntoken_sha256 = "{digest(token)}"\n' for name, token in tokens.items())
            file = Path(folder) / "users.toml"
            file.write_text(USERS.format(users=entries))
            options = ["--users", str(file)]
        *_, controller = start_switch(family, controller_options=options)
        lanes = at_a_time // processes
        arguments = [str(jobs // at_a_time), str(ranks)]
        children = [
            family.start(
                f"lanes {number}",
                "p4reduce_bench.parts.joining_lanes",
                *arguments,
                *(f"{TENANTS[lane % len(TENANTS)]}-{lane}" for lane in range(number * lanes, (number + 1) * lanes)),
                environment={
                    "P4REDUCE_CONTROLLER": controller,
                    "P4REDUCE_QUEUE": "30",
                    "TOKENS": json.dumps(tokens),
                },
            )
            for number in range(processes)
        ]
        if flood:
            more = {"P4REDUCE_CONTROLLER": controller, "TOKENS": json.dumps(tokens)}
            family.start("flood", "p4reduce_bench.parts.joining_lanes", "0", "1", FLOOD, environment=more)
        said = [event for _, event in family.events(children, TIMEOUT_S)]
        return {"seconds": [one for event in said for one in event["seconds"]], "errors": [e["errors"] for e in said]}


def table(rows: dict[str, dict[str, Any]]) -> str:
    """In Markdown."""
    lines = ["| | jobs | median ms | 95th percentile ms | longest ms |", "|---|---|---|---|---|"]
    for name, row in rows.items():
        seconds = sorted(row["seconds"])
        middle, high = statistics.median(seconds), seconds[int(0.95 * len(seconds))]
        lines.append(f"| {name} | {len(seconds)} | {1e3 * middle:.0f} | {1e3 * high:.0f} | {1e3 * seconds[-1]:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m p4reduce_bench.parts.joining", description=__doc__)
    parser.add_argument("--jobs", type=int, default=192)
    parser.add_argument("--at-a-time", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=4, help="ranks of each job")
    parser.add_argument("--processes", type=int, default=4, help="processes; the ranks are their threads")
    parser.add_argument(
        "--flood", action="store_true", help="measure as well while a tenant sends requests without pause"
    )
    parser.add_argument("--json", action="store_true", help="print the seconds of every job as JSON")
    options = parser.parse_args()
    if options.at_a_time % options.processes:
        parser.error(f"--at-a-time {options.at_a_time}: must be a multiple of --processes {options.processes}")
    what = {"one token for all": (False, False), "users": (True, False)}
    if options.flood:
        what["users, one of whom floods"] = (True, True)
    rows = {
        name: measure(options.jobs, options.at_a_time, options.ranks, options.processes, users=users, flood=flood)
        for name, (users, flood) in what.items()
    }
    if wrong := [error for row in rows.values() for errors in row["errors"] for error in errors]:
        raise SystemExit(f"{len(wrong)} jobs failed, the first: {wrong[0]}")
    print(json.dumps({"version": 1, "rows": rows}) if options.json else table(rows))


if __name__ == "__main__":
    main()
