# SPDX-License-Identifier: Apache-2.0
"""Under torchrun: what a rank does while its group's ranks join a job, or leave it, holds up nothing else.

Prints a JSON object for each check that passed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .saying import Checks

SOON = 40.0  # seconds, and less than any time limit here; a machine may be busy
LARGE = 100_000
CHECKS = Checks()


def pair(*ranks: int) -> Any:
    return dist.new_group(list(ranks) or [0, 1], timeout=timedelta(seconds=90))


@contextlib.contextmanager
def soon() -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < SOON


def done(what: str) -> None:
    """Tell the other rank, without a collective."""
    dist.distributed_c10d._get_default_store().set(what, "done")


def wait_for(what: str) -> None:
    dist.distributed_c10d._get_default_store().wait([what], timedelta(seconds=90))


def together(name: str) -> None:
    """Wait until all ranks have reached this call."""
    done(f"{name} {dist.get_rank()}")
    for rank in range(dist.get_world_size()):
        wait_for(f"{name} {rank}")


def refused(call: Callable[[], Any], kind: type[BaseException] = dist.DistBackendError) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("no error")


@contextlib.contextmanager
def interrupted(handler: Callable[..., None]) -> Iterator[None]:
    """Send this process a signal 0.3 s from now, which `handler` handles."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@CHECKS.add
def asynchronous_calls_return_at_once(rank: int, size: int) -> None:
    """Call a group's first collectives, and larger ones for which its job grows, before the other rank calls them.

    The other rank begins with a receive.
    """
    group = pair()
    for number in (4, LARGE):
        tensors = [torch.ones(number), torch.ones(number), torch.ones(number, dtype=torch.float64)]
        if rank == 0:
            with soon():
                works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
                future = works[1].get_future().then(lambda future: future.value()[0] * 2)
            dist.send(torch.ones(1), 1)
            for work in works:
                assert work.wait()
                assert work.is_success()
            assert torch.equal(future.wait(), torch.full((number,), 2.0 * size))
        else:
            dist.recv(torch.ones(1), 0)
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)
        assert all(tensor.eq(size).all() for tensor in tensors)
    sparse = torch.eye(3).to_sparse()
    if rank == 0:
        work = dist.all_reduce(sparse, group=group, async_op=True)
        dist.send(torch.ones(1), 1)
        work.wait()
    else:
        dist.recv(torch.ones(1), 0)
        dist.all_reduce(sparse, group=group)
    assert torch.equal(sparse.to_dense(), size * torch.eye(3))
    dist.destroy_process_group(group)


def time_is_over(_: int, frame: FrameType | None) -> None:
    """Raise an error if the signal interrupts a call. If it comes before the call, let another one come."""
    while frame is not None:
        if frame.f_globals["__name__"].startswith(("p4reduce.", "torch.distributed.")):
            raise TimeoutError("the program's own")
        frame = frame.f_back
    signal.setitimer(signal.ITIMER_REAL, 0.1)


def sum_in_place(tensor: torch.Tensor, group: Any) -> None:
    dist.all_reduce(tensor, group=group)


def sum_and_wait(tensor: torch.Tensor, group: Any) -> None:
    """Wait for a work that nothing else refers to, as C++ code does."""
    dist.all_reduce(tensor, group=group, async_op=True).wait()


def sum_together(tensor: torch.Tensor, group: Any) -> None:
    with dist.distributed_c10d._coalescing_manager(group=group):
        dist.all_reduce(tensor, group=group)
        dist.all_reduce(torch.ones(4), group=group)


def call_often(call: Callable[[torch.Tensor, Any], None], size: int, group: Any) -> None:
    """Call until an error says that the other rank has left, which may have sent its part of the first call before."""
    while True:
        tensor = torch.ones(size)
        call(tensor, group)
        assert tensor.eq(2).all()


@CHECKS.add
def a_call_that_is_left_fails_for_all(rank: int, size: int) -> None:
    """Interrupt calls before the group has joined a job, while its job grows, and while the collective is under way."""
    cases = [
        *((who, sum_in_place, elements, elements == LARGE) for elements in (4, LARGE) for who in range(size)),
        (0, sum_in_place, 4, True),
        (1, sum_and_wait, 4, False),
        (0, sum_and_wait, 4, True),
        (1, sum_together, 4, True),
    ]
    for number, (who, call, elements, joined) in enumerate(cases):
        group = pair()
        if joined:
            dist.all_reduce(torch.ones(4), group=group)
        tensor = torch.ones(elements)
        if rank == who:
            with soon(), interrupted(time_is_over):
                assert refused(lambda: call(tensor, group), TimeoutError) == "the program's own"  # noqa: B023
            tensor.fill_(1000)
            done(f"left {number}")
        else:
            wait_for(f"left {number}")
        with soon():
            refused(lambda: call_often(call, elements, group))  # noqa: B023
        together(f"both have failed {number}")
        assert rank != who or tensor.eq(1000).all()
        dist.destroy_process_group(group)


@CHECKS.add
def a_handler_destroys_a_group_that_joins(rank: int, size: int) -> None:
    for who in range(size):
        group = pair()
        if rank == who:

            def destroy(*_: object) -> None:
                with soon():
                    dist.destroy_process_group(group)  # noqa: B023

            with soon(), interrupted(destroy):  # after which torch.distributed does not know the group
                refused(lambda: dist.all_reduce(torch.ones(4), group=group), Exception)  # noqa: B023
            done(f"destroyed {who}")
        else:
            wait_for(f"destroyed {who}")
            with soon():
                refused(lambda: dist.all_reduce(torch.ones(4), group=group))  # noqa: B023
            dist.destroy_process_group(group)


@CHECKS.add
def abort_ends_a_job_for_all_at_once(rank: int, size: int) -> None:
    for joined in (False, True):
        for who in range(size):
            group = pair()
            if joined:
                dist.all_reduce(torch.ones(4), group=group)
            if rank == who:
                watchdog = threading.Timer(0.3, group.abort)
                watchdog.start()
                with soon():
                    refused(lambda: dist.all_reduce(torch.ones(4), group=group))  # noqa: B023
                watchdog.join()
                done(f"aborted {joined} {who}")
            else:
                wait_for(f"aborted {joined} {who}")
                tensor = torch.ones(4)
                with soon():
                    if joined:  # what the other rank had sent before is a sum that may end well
                        with contextlib.suppress(dist.DistBackendError):
                            dist.all_reduce(tensor, group=group)
                            assert tensor.eq(size).all()
                    refused(lambda: dist.all_reduce(tensor, group=group))  # noqa: B023
            together(f"aborted {joined} {who}")
            with soon():
                dist.destroy_process_group(group)


@CHECKS.add
def groups_wait_apart(rank: int, size: int) -> None:
    both, alone = pair(), pair(1)
    if rank:
        work = dist.all_reduce(waits := torch.ones(4), group=both, async_op=True)
        with soon():
            dist.all_reduce(torch.ones(4), group=alone)
        done("alone")
        work.wait()
    else:
        wait_for("alone")
        dist.all_reduce(waits := torch.ones(4), group=both)
    assert waits.eq(size).all()


@CHECKS.add
def groups_are_destroyed_in_any_order(rank: int, size: int) -> None:
    assert size == 2
    groups = [pair(), pair()]
    for group in groups:
        dist.all_reduce(torch.ones(4), group=group)
    with soon():
        for group in groups if rank else reversed(groups):
            dist.destroy_process_group(group)
            together(f"destroyed in order {groups.index(group) ^ rank}")


@CHECKS.add
def a_work_that_only_cpp_has_ends(rank: int, size: int) -> None:
    """Train with uneven inputs, where DDP's reducer alone has the work that counts ranks with inputs.

    Python has no reference to that work any more.
    """
    linear = torch.nn.Linear(1, 1, bias=False)
    network = DistributedDataParallel(linear, process_group=pair())
    with network.join(divide_by_initial_world_size=False):
        for step in range(1 + rank):
            network.zero_grad()
            network(torch.ones(1, 1) * (rank + 1)).backward()
            assert linear.weight.grad is not None
            ranks = size if step == 0 else 1  # the other one has no second input
            assert linear.weight.grad.item() == (sum(range(1, size + 1)) if ranks == size else rank + 1) / ranks


@CHECKS.add
def works_that_nobody_waits_for_are_not_kept_for_ever(_: int, world_size: int) -> None:
    group = pair()
    dist.all_reduce(torch.ones(4), group=group)
    gone, aliases = [], []
    for size in (4, LARGE):
        for _ in range(100):
            tensor = torch.ones(size)
            dist.all_reduce(tensor, group=group, async_op=True)
            gone.append(weakref.ref(tensor))
            aliases.append(tensor.detach())
            del tensor
    deadline = time.monotonic() + SOON
    # A group that is destroyed while operations are under way ends the job, and a barrier does not wait for them.
    while not all(alias.eq(world_size).all() for alias in aliases) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(alias.eq(world_size).all() for alias in aliases)
    dist.barrier(group=group)
    large = gone[100:]
    while any(each() is not None for each in large) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert all(each() is None for each in large)
    assert sum(each() is not None for each in gone) <= 64
    dist.destroy_process_group(group)
    assert all(each() is None for each in gone)


@CHECKS.add
def a_group_is_split(rank: int, size: int) -> None:
    group = pair()
    assert group.get_group_store() is not None
    refused(lambda: group.split_group([0, size]), ValueError)
    for turn in range(2):
        for ranks in ([0, 1], [1]):
            part = group.split_group(ranks, group_name=f"of {turn} {ranks}" if turn else None)
            assert (part is None) == (rank not in ranks)
            if part is None:
                continue
            assert (part.name(), part.size(), part.rank()) == ("p4reduce", len(ranks), ranks.index(rank))
            tensor = torch.full((4,), rank + 1.0)
            part.allreduce([tensor]).wait()
            assert tensor.eq(sum(each + 1 for each in ranks)).all()
            part.shutdown()
    dist.destroy_process_group(group)


@CHECKS.add
def a_group_costs_few_threads_and_descriptors(_: int, __: int) -> None:
    def count(folder: str) -> int:
        return len(os.listdir(f"/proc/self/{folder}"))

    groups = [pair()]
    dist.all_reduce(torch.ones(4), group=groups[0])
    before = {folder: count(folder) for folder in ("task", "fd")}
    for _ in range(4):
        groups.append(pair())
        dist.all_reduce(torch.ones(4), group=groups[-1])
    deadline = time.monotonic() + SOON
    most = {"task": 8 * 4, "fd": 8 * 4}  # of which Gloo has 3 and 5 a group
    while any(count(folder) - before[folder] > most[folder] for folder in most) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(count(folder) - before[folder] <= most[folder] for folder in most)
    for group in groups:
        dist.destroy_process_group(group)


@CHECKS.add
def a_list_that_is_refused_changes_nothing(_: int, __: int) -> None:
    for others in ([torch.ones(4)], [torch.ones(4), torch.ones(4)]):
        refused(lambda: dist.all_reduce_coalesced([*others, torch.ones(1).expand(4)]), ValueError)  # noqa: B023
        time.sleep(0.3)
        assert all(other.eq(1).all() for other in others)


def main() -> None:
    dist.init_process_group("p4reduce", timeout=timedelta(seconds=90))
    rank, size = dist.get_rank(), dist.get_world_size()
    CHECKS.run(rank, size, after=together)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
