# SPDX-License-Identifier: Apache-2.0
"""Packets a second through the native switch on loopback, with synthetic workers (targets/csrc/bench/load.c).

"switch ns" is the processor time that the switch takes for a packet in with a result out, in user mode + in the kernel;
"workers ns" is what the synthetic workers take for theirs. Needs cmake and a C compiler.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
COLUMNS = (
    "workers",
    "slots",
    "threads",
    "lanes",
    "packets",
    "seconds",
    "packets/s",
    "switch user+kernel",
    "workers ns",
)


def build(folder: Path) -> Path:
    """Return the load generator, compiled; CalledProcessError where that fails."""
    subprocess.run(["cmake", "-S", ROOT, "-B", folder], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder, "--target", "native_load"], check=True, stdout=subprocess.DEVNULL)
    return folder / "targets" / "csrc" / "native_load"


def best(program: Path, runs: int, *arguments: int) -> dict[str, Any]:
    """Return the fastest of several runs: others' work on the machine only ever adds time."""
    results = []
    for _ in range(runs):
        done = subprocess.run([program, *map(str, arguments)], check=True, capture_output=True, timeout=120)
        results.append(json.loads(done.stdout))
    return min(results, key=lambda result: float(result["seconds"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--slots", type=int, nargs="+", default=[256])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--lanes", type=int, nargs="+", default=[4], help="lanes in each packet, of the 4 that a packet may carry"
    )
    parser.add_argument("--ipv6", action="store_true", help="over IPv6 instead of IPv4")
    parser.add_argument("--packets", type=int, default=409_600, help="packets of all workers together")
    parser.add_argument("--runs", type=int, default=3, help="runs; the fastest one is used")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args()
    if not options.json:
        print(" ".join(f"{name:>12}" for name in COLUMNS))
    with tempfile.TemporaryDirectory(prefix="p4reduce-bench-") as folder:
        program = build(Path(folder))
        for workers in options.workers:
            for slots in options.slots:
                for threads in options.threads:
                    for lanes in options.lanes:
                        rounds = max(1, options.packets // workers // slots)
                        family = 6 if options.ipv6 else 4
                        result = best(program, options.runs, workers, slots, rounds, threads, lanes, family)
                        if options.json:
                            print(json.dumps(result), flush=True)
                        else:
                            cost = f"{result['switch_user_ns']:.0f}+{result['switch_kernel_ns']:.0f}"
                            cells = [result[name] for name in ("workers", "slots", "threads", "lanes", "packets")]
                            cells += [f"{result['seconds']:.3f}", f"{result['packets_per_second']:.0f}", cost]
                            cells += [f"{result['workers_ns']:.0f}"]
                            print(" ".join(f"{cell:>12}" for cell in cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
