# SPDX-License-Identifier: Apache-2.0
"""Under torchrun: what goes wrong is a DistBackendError that says what, on every way to learn of it.

Prints a JSON object for each error that was as it must be.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from p4reduce import CollectiveTimeout, MismatchError

from .saying import say


def expect(
    name: str, call: Callable[[], Any], message: str, kind: type[Exception] = dist.DistBackendError
) -> Exception:
    error: Exception | None = None
    try:
        call()
    except kind as caught:
        error = caught
    assert error is not None, f"{name}: no error"
    assert re.search(message, str(error)), error
    say({"rank": dist.get_rank(), "passed": name})
    return error


def main() -> None:
    # Longer than a rank waits in any other group, as the others wait for it at a barrier of this one.
    dist.init_process_group("p4reduce", timeout=timedelta(seconds=120))
    rank, size = dist.get_rank(), dist.get_world_size()
    everyone = list(range(size))
    # The fifth is for the first DDP module, whose imports take longer where the machine is busy.
    groups = [dist.new_group(everyone, timeout=timedelta(seconds=limit)) for limit in (2, 2, 2, 2, 30)]
    for group in groups:
        dist.barrier(group)

    wrong = torch.ones(3 + rank)
    error = expect("mismatch", lambda: dist.all_reduce(wrong, group=groups[0]), "MismatchError: .*different operations")
    assert isinstance(error.__cause__, MismatchError)

    work = dist.all_reduce(torch.ones(3 + rank), group=groups[1], async_op=True)
    # As in all of PyTorch, a future's error arrives in C++'s words.
    expect("future", lambda: work.get_future().wait(), "MismatchError: .*different operations", RuntimeError)
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), dist.DistBackendError)
    expect("result", work.result, "has not completed successfully", RuntimeError)

    if rank == 0:
        error = expect(
            "timeout", lambda: dist.all_reduce(torch.ones(3), group=groups[2]), "timeout.*within 2 s: .*rank 1"
        )
        assert isinstance(error.__cause__, CollectiveTimeout)
        expect("afterwards", lambda: dist.all_reduce(torch.ones(3), group=groups[2]), "within 2 s: .*rank 1")
        work = dist.all_reduce(torch.ones(3), group=groups[3], async_op=True)
        expect("wait", lambda: work.wait(timedelta(seconds=0.2)), "has not ended after waiting 0.2 s")
        assert not work.is_completed()
    dist.barrier()

    network = DistributedDataParallel(torch.nn.Linear(2, 1), process_group=groups[4])
    if rank == 1:
        groups[4].shutdown()
    else:
        loss = network(torch.ones(1, 2)).sum()
        expect("DDP", loss.backward, "DistBackendError: (JobAborted|CollectiveTimeout): .*rank 1", RuntimeError)
    dist.barrier()
    say({"rank": rank, "passed": "the other groups"})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
