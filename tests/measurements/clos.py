# SPDX-License-Identifier: Apache-2.0
"""The sums and loads of a job of many ranks, over leaves and spines of native on this machine.

Each leaf has a cable, a UDP port, to each spine. Ranks are threads with C engines in a few processes. If there are
more than 31 workers at a leaf, ranks must share streams: `--per-host` of them, which pretend to be on one host.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.cluster.stack import Stack, job, over_udp

TIMEOUT_S = 900.0


def measure(plan: dict[str, Any], *, target: str, leaves: int, spines: int, processes: int) -> dict[str, Any]:
    """Run the job, and return its figures. Raises ChildFailed if a process fails.

    plan: ranks, per_host, slots, numel, density, calls.
    """
    with over_udp(target=target, leaves=leaves, spines=spines) as stack, tempfile.TemporaryDirectory() as folder:
        release = Path(folder, "release")
        common = {
            **plan,
            "job": "clos",
            "controller": stack.controller,
            "at": stack.names[spines:],
            "release": str(release),
            "count": plan["ranks"] // processes,
        }
        began = time.monotonic()
        children = [
            stack.start(
                f"ranks from {first} on",
                "tests.measurements.clos_ranks",
                json.dumps({**common, "first": first}),
                environment={"OMP_NUM_THREADS": "1"},
            )
            for first in range(0, plan["ranks"], common["count"])
        ]
        done, ranks, loads = 0, [], []
        for _, event in stack.events(children, TIMEOUT_S):
            ranks += event.get("ranks", [])
            done += "done" in event
            if done == len(children) and not loads:
                loads = _loads(stack, spines)
                release.touch()
        workers = [one["packets"] for one in ranks if one["packets"]]
        return {
            **plan,
            "leaves": leaves,
            "spines": spines,
            "workers": len(workers),
            "reported": len(ranks),
            "wrong": sum(one["wrong"] for one in ranks),
            "retransmissions": sum(one["retransmissions"] for one in ranks),
            "calls_s": max(one["seconds"] for one in ranks),
            "all_s": time.monotonic() - began,
            # Packets of the job on an uplink of a leaf, relative to those of a worker.
            "uplink_shares": [count / leaves / statistics.mean(workers) for count in loads],
        }


def _loads(stack: Stack, spines: int) -> list[int]:
    """Return the packets of the job that each spine has received."""
    traffic = {one["switch"]: int(one["packets"]) for one in job(stack, "clos")["traffic"]}
    return [traffic.get(at, 0) for at in range(spines)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--per-host", type=int, default=2, help="ranks that share a stream")
    parser.add_argument("--leaves", type=int, default=4)
    parser.add_argument("--spines", type=int, default=2)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--numel", type=int, default=1 << 16)
    parser.add_argument("--density", type=float, default=0.2)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--target", default="native")
    given = vars(parser.parse_args())
    shape = {key: given.pop(key) for key in ("target", "leaves", "spines", "processes")}
    print(json.dumps(measure(given, **shape), indent=1))


if __name__ == "__main__":
    main()
