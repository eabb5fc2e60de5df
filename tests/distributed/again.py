# SPDX-License-Identifier: Apache-2.0
"""One of two ranks of `env://`: makes process groups one after the other, of which most fail, with the collector off.

Prints a JSON object for each group. Argument: how many groups.
"""

from __future__ import annotations

import gc
import os
import sys
import weakref
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from saying import say


def entries(folder: str) -> int:
    return len(os.listdir(f"/proc/self/{folder}"))


def main() -> None:
    gc.disable()
    for turn in range(int(sys.argv[1])):
        dist.init_process_group("p4reduce", timeout=timedelta(seconds=20))
        group = weakref.ref(dist.group.WORLD)
        rank, error = dist.get_rank(), ""
        works = turn % 4 == 3
        try:
            dist.all_reduce(torch.ones(3 if works else 3 + rank))
        except dist.DistBackendError as caught:
            error = str(caught)
        dist.destroy_process_group()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        say(
            {
                "rank": rank,
                "right": not error if works else "different operations" in error,
                "left": group() is not None,
                "threads": entries("task"),
                "descriptors": entries("fd"),
                "resident": resident,
            }
        )


if __name__ == "__main__":
    main()
