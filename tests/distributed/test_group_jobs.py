# SPDX-License-Identifier: Apache-2.0
"""A group's membership in a job where the store that its ranks share fails them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.distributed import DistNetworkError, HashStore  # noqa: E402

from p4reduce import CollectiveTimeout, JoinError  # noqa: E402
from p4reduce.distributed.group_jobs import GroupJobs  # noqa: E402
from p4reduce.distributed.options import Options  # noqa: E402
from tests.support.cluster.stack import Stack  # noqa: E402


class Store:
    """A store that answers `check` so often, and then loses its connection."""

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.told: dict[str, Any] = {}

    def check(self, keys: list[str]) -> bool:
        self.answers -= 1
        if self.answers < 0:
            raise DistNetworkError("Connection was likely closed\nframe #0: ...")
        return keys[0] in self.told

    def get(self, key: str) -> bytes:
        return str(self.told[key]).encode()

    def set(self, key: str, value: str) -> None:
        self.told[key] = value


@pytest.mark.parametrize(("rank", "answers"), [(0, 0), (1, 0), (1, 3)])
def test_a_store_that_has_gone_is_named_at_every_call(rank: int, answers: int) -> None:
    jobs = GroupJobs(Store(answers), rank, 2, "both", Options(controller="127.0.0.1:9"))
    for _ in range(2):
        with pytest.raises(JoinError, match=r"group 'both': the store .* rank 0 .* ended.* likely closed$"):
            jobs.communicator(4, 5.0)
        assert jobs.at_hand(4)
    assert not jobs.without


def test_rank_0_that_has_not_come_is_named_with_what_it_may_do_instead() -> None:
    jobs = GroupJobs(Store(10**6), 1, 2, "both", Options())
    with pytest.raises(
        CollectiveTimeout, match=r"rank 0 of group 'both' did not start .* within 0.1 s; .*Gloo"
    ) as caught:
        jobs.communicator(4, 0.1)
    assert caught.value.awaited == (0,)


def test_why_rank_0_cannot_join_is_told_to_all() -> None:
    store = Store(10**6)
    with pytest.raises(ValueError, match="wire='int3'"):
        GroupJobs(store, 0, 2, "both", Options(wire="int3")).communicator(4, 5.0)  # type: ignore[arg-type]
    with pytest.raises(JoinError, match="rank 0 of group 'both' could not join its job: wire='int3'"):
        GroupJobs(store, 1, 2, "both", Options()).communicator(4, 5.0)


def test_why_another_rank_cannot_join_is_told_to_all(native_stack: Stack) -> None:
    """No rank waits until its timeout, although the controller has never heard of the rank that cannot join."""
    store, limit = HashStore(), 60.0
    wires: tuple[Any, ...] = ("auto", "int3", "auto")
    ranks = [
        GroupJobs(store, rank, 3, "all", Options(controller=native_stack.controller, wire=wire))
        for rank, wire in enumerate(wires)
    ]
    begun = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        errors = [one.exception() for one in [pool.submit(rank.communicator, 4, limit) for rank in ranks]]
    assert time.monotonic() - begun < limit / 2
    assert "wire='int3'" in str(errors[1])
    for error in (errors[0], errors[2]):
        assert isinstance(error, JoinError)
        assert str(error).startswith("rank 1 of group 'all' could not join its job: wire='int3'")


def test_a_rank_that_aborts_before_it_calls_ends_the_join_of_the_others(native_stack: Stack) -> None:
    store, limit = HashStore(), 60.0
    ranks = [GroupJobs(store, rank, 3, "all", Options(controller=native_stack.controller)) for rank in range(3)]
    begun = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        joining = [pool.submit(ranks[rank].communicator, 4, limit) for rank in (0, 2)]
        store.wait(["job 1"])
        ranks[1].abort()
        errors = [one.exception() for one in joining]
    assert time.monotonic() - begun < limit / 2
    for error in errors:
        assert isinstance(error, JoinError)
        assert "rank 1 has ended the group on its side" in str(error)


class Hanging(HashStore):
    """A store that answers nobody who makes a client of it: as of a host that is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.over = threading.Event(), threading.Event()

    def clone(self) -> HashStore:
        self.asked.set()
        self.over.wait(60)
        raise DistNetworkError("gone")


def test_a_store_that_goes_while_ranks_join_holds_nobody_up(
    native_stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Hanging()
    monkeypatch.setattr("p4reduce.distributed.group_jobs._POLL_S", 0.01)
    first, second = (
        GroupJobs(store, rank, 2, "both", Options(controller=native_stack.controller)) for rank in range(2)
    )
    monkeypatch.setattr(second, "_told", lambda *_: store.get("job 1").decode())
    with ThreadPoolExecutor(2) as pool:
        joining = pool.submit(first.communicator, 4, 60.0)
        assert store.asked.wait(30)
        other = pool.submit(second.communicator, 4, 60.0)
        communicators = [joining.result(30), other.result(30)]
    store.over.set()
    for communicator in communicators:
        assert communicator is not None
        communicator.abort()


def test_a_rank_that_has_given_up_is_told_to_rank_0() -> None:
    store = Store(10**6)
    GroupJobs(store, 1, 2, "both", Options()).abort()
    with pytest.raises(JoinError, match="rank 1 has ended the group on its side"):
        GroupJobs(store, 0, 2, "both", Options(controller="127.0.0.1:9")).communicator(4, 5.0)
