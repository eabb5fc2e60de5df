# SPDX-License-Identifier: Apache-2.0
"""A process group of the backend whose only rank is this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from p4reduce import Communicator, OperationRefused
from p4reduce.submit.allreduce import Allreduce
from tests.support.hostlib.fake_session import FakeController


@pytest.fixture(autouse=True)
def _send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_LOCAL", "off")


def begin() -> None:
    dist.init_process_group("p4reduce", store=dist.HashStore(), rank=0, world_size=1)


@pytest.fixture
def group(controller: FakeController) -> Iterator[None]:
    assert controller is not None
    begin()
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_call_returns_at_once_while_another_thread_waits_for_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, others_come = threading.Event(), threading.Event()
    execute = Communicator.execute

    def wait_for_others(communicator: Communicator, *arguments: Any) -> None:
        with communicator._submission.lock:  # as while the engine executes the operation
            begun.set()
            assert others_come.wait(30.0)
            execute(communicator, *arguments)

    monkeypatch.setattr(Communicator, "execute", wait_for_others)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(dist.all_reduce, torch.ones(8))
        assert begun.wait(20.0)
        later = torch.ones(8)
        try:
            work = pool.submit(dist.all_reduce, later, async_op=True).result(20.0)
            assert not work.is_completed()
        finally:
            others_come.set()
        waiting.result(20.0)
    work.wait()
    assert (later == 1).all()


@pytest.mark.usefixtures("group")
def test_what_the_job_cannot_carry_is_an_error_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the type that an asynchronous call's error has."""

    def refuse(*_: object, **__: object) -> None:
        raise OperationRefused("a tensor of 2^40 blocks: accepted are fewer")

    monkeypatch.setattr(Allreduce, "begin", refuse)
    with pytest.raises(dist.DistBackendError, match=r"^OperationRefused: a tensor of 2\^40 blocks"):
        dist.all_reduce(torch.ones(8))


@pytest.mark.usefixtures("controller")
def test_a_wrong_setting_is_an_error_of_the_backend_of_which_other_ranks_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The join finds the wrong setting, when the ranks are connected."""
    monkeypatch.setenv("P4REDUCE_WIRE", "int3")
    with pytest.raises(dist.DistBackendError, match=r"ValueError: .*int3"):
        begin()
