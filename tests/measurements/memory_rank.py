# SPDX-License-Identifier: Apache-2.0
"""One rank of `memory`: prints a JSON object with the memory that one allreduce has taken beside its tensor."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import p4reduce

VALUES = (1.0, 2.0)  # of the blocks that are not zero, in turns


def in_memory(what: str) -> int:
    """Return the bytes of this process in RAM: VmRSS is the present figure, VmHWM the peak since `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == what:
            return int(value.split()[0]) << 10
    raise KeyError(what)


def forget_peak() -> None:
    """Let VmHWM begin anew (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    """Join, reduce once, check the sums, and say what that took."""
    mib, every = (int(argument) for argument in sys.argv[1:])
    tensor = np.empty(mib << 18, np.float32)
    tensor.fill(0)  # for the memory to be there
    blocks = tensor.reshape(-1, 64)
    for turn, value in enumerate(VALUES):
        blocks[turn * every :: 2 * every] = value
    forget_peak()
    before = in_memory("VmRSS")
    with p4reduce.Communicator(job="memory", timeout=250) as communicator:
        joined = in_memory("VmRSS")
        communicator.allreduce(tensor)
    peak = in_memory("VmHWM")
    world = communicator.world_size
    # Every block is all zero, or the same value 64 times. Maxima and minima of blocks take little memory.
    wrong = int(np.count_nonzero(blocks.max(axis=1) != blocks.min(axis=1)))
    first = blocks[:, 0]
    for turn, value in enumerate(VALUES):
        wrong += int(np.count_nonzero(first[turn * every :: 2 * every] != world * value))
    wrong += int(np.count_nonzero(first)) - -(-first.size // every)
    print(json.dumps({
        "backend": p4reduce.backend().name,
        "before": before,
        "joined": joined - before,
        "added": peak - before,
        "wrong": wrong,
    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
