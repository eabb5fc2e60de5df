# SPDX-License-Identifier: Apache-2.0
"""One rank of `small`: reduces tensors of few elements, through the switch and with Gloo in turn.

Prints a JSON object for each size: seconds of each operation, by system, and elements that were wrong.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import p4reduce

TIMEOUT_S = 60.0


def measure(communicator: p4reduce.Communicator, numel: int, dtype: str, repeat: int) -> dict[str, Any]:
    """Each system's operations follow the others' at once, so that both meet the same machine."""
    array = np.empty(numel, dtype)
    tensor = torch.from_numpy(np.empty(numel, dtype))
    systems: dict[str, tuple[Any, Callable[[], object]]] = {
        "p4reduce": (array, lambda: communicator.allreduce(array)),
        "p4reduce, async": (array, lambda: communicator.allreduce_async(array).wait()),
        "gloo": (tensor.numpy(), lambda: dist.all_reduce(tensor)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    wrong = 0
    for turn in range(repeat):
        for name, (work, reduce) in systems.items():
            work[:] = communicator.rank + turn % 8
            begun = time.perf_counter()
            reduce()
            seconds[name].append(time.perf_counter() - begun)
            wrong += int(np.count_nonzero(work != sum(rank + turn % 8 for rank in range(communicator.world_size))))
    return {"rank": communicator.rank, "numel": numel, "seconds": seconds, "wrong": wrong}


def main() -> None:
    """Join, and measure one size after the other."""
    sizes, dtype, repeat = sys.argv[1].split(","), sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    with p4reduce.Communicator(job="small", timeout=TIMEOUT_S, local="off") as communicator:
        for size in sizes:
            print(json.dumps(measure(communicator, int(size), dtype, repeat)), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
