# SPDX-License-Identifier: Apache-2.0
"""Under torchrun: what goes wrong is a DistBackendError that says what, on every way to learn of it.

Prints a JSON object for each check that passed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from p4reduce import CollectiveTimeout, MismatchError

from .saying import Checks

CHECKS = Checks()
DIFFERENT = "MismatchError: .*different operations"


def pair(limit: float = 60) -> Any:
    """Return a new group of both ranks, which has joined its job. limit: its timeout in seconds from then on."""
    group = dist.new_group(timeout=timedelta(seconds=60))
    dist.barrier(group)
    group.set_timeout(timedelta(seconds=limit))
    return group


@CHECKS.add
def a_mismatch_is_raised(rank: int) -> None:
    with pytest.raises(dist.DistBackendError, match=DIFFERENT) as raised:
        dist.all_reduce(torch.ones(3 + rank), group=pair())
    assert isinstance(raised.value.__cause__, MismatchError)


@CHECKS.add
def works_and_futures_have_the_error(rank: int) -> None:
    work = dist.all_reduce(torch.ones(3 + rank), group=pair(), async_op=True)
    with pytest.raises(RuntimeError, match=DIFFERENT):  # as in all of PyTorch, it arrives in C++'s words
        work.get_future().wait()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), dist.DistBackendError)
    with pytest.raises(RuntimeError, match="has not completed successfully"):
        work.result()


@CHECKS.add
def a_timeout_names_who_is_awaited(rank: int) -> None:
    group, other = pair(2), pair(2)
    if rank == 0:
        for _ in range(2):  # the second at once
            with pytest.raises(dist.DistBackendError, match=r"within 2 s: .*rank 1") as raised:
                dist.all_reduce(torch.ones(3), group=group)
            assert isinstance(raised.value.__cause__, CollectiveTimeout)
        work = dist.all_reduce(torch.ones(3), group=other, async_op=True)
        with pytest.raises(dist.DistBackendError, match=r"has not ended after waiting 0\.2 s"):
            work.wait(timedelta(seconds=0.2))
        assert not work.is_completed()


@CHECKS.add
def ddp_tells_of_a_rank_that_has_gone(rank: int) -> None:
    group = pair()  # the first DDP module imports much
    network = DistributedDataParallel(torch.nn.Linear(2, 1), process_group=group)
    group.set_timeout(timedelta(seconds=5))
    if rank == 1:
        group.shutdown()
    else:
        error = "DistBackendError: (JobAborted|CollectiveTimeout): .*rank 1"
        with pytest.raises(RuntimeError, match=error):
            network(torch.ones(1, 2)).sum().backward()


def main() -> None:
    # The others wait for a rank at a barrier of this group: longer than that one waits in any other.
    dist.init_process_group("p4reduce", timeout=timedelta(seconds=120))
    CHECKS.run(dist.get_rank(), after=lambda _: dist.barrier())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
