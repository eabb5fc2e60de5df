# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks whose store has what ranks of an earlier start have left, as torchrun's after a restart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.distributed import DistBackendError, HashStore  # noqa: E402

from p4reduce.distributed import restarts  # noqa: E402
from p4reduce.distributed.options import Options  # noqa: E402
from p4reduce.distributed.process_group import SwitchGroup  # noqa: E402
from tests.support.cluster.stack import Stack  # noqa: E402


def group(store: Any, rank: int, controller: str, timeout: float) -> Any:
    backend_options = SimpleNamespace(
        store=store, group_rank=rank, group_size=2, group_id="0", global_ranks_in_group=[],
        timeout=timedelta(seconds=timeout),
    )  # fmt: skip
    return SwitchGroup(backend_options, Options(controller=controller))


def check_sum(store: Any, controller: str) -> None:
    """Check that two ranks of a new group get the right sum."""

    def reduced(one: Any) -> Any:
        tensor = torch.ones(2)
        one.allreduce(tensor).wait()
        return tensor.tolist()

    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(lambda rank: group(store, rank, controller, 20), range(2)))
        assert list(pool.map(reduced, groups)) == [[2.0, 2.0]] * 2
        list(pool.map(lambda each: each.shutdown(), groups))


def test_the_job_of_an_earlier_start_is_not_joined(native_stack: Stack) -> None:
    store = HashStore()
    store.set("p4reduce/job 1", "torch 0 of an earlier start")
    check_sum(store, native_stack.controller)


@pytest.mark.parametrize("ranks", [{0}, {1}, {0, 1}])
def test_a_connection_that_gloo_loses_at_once_is_made_again_by_all(
    native_stack: Stack, monkeypatch: pytest.MonkeyPatch, ranks: set[int]
) -> None:
    agreed, losing = restarts.agreed, set(ranks)

    def losing_some(gloo: Any, timeout: timedelta) -> str:
        word = agreed(gloo, timeout)
        if gloo.rank() in losing:
            losing.remove(gloo.rank())
            raise RuntimeError("[pair.cc:547] Read error [127.0.0.1]:9: Connection reset by peer")
        return word

    monkeypatch.setattr(restarts, "agreed", losing_some)
    check_sum(HashStore(), native_stack.controller)
    assert not losing


def test_a_connection_that_gloo_always_loses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: object) -> str:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(restarts, "agreed", lose)
    made: list[str] = []
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        restarts.connect(made.append, HashStore(), 0, 1, timedelta(seconds=5))
    assert made == ["gloo/0/", "gloo/1/", "gloo/2/"]


@pytest.mark.parametrize(("restarts", "shared"), [("1", "True"), ("0", "True"), ("1", "False")])
def test_a_restart_with_the_store_of_before_is_named(
    monkeypatch: pytest.MonkeyPatch, restarts: str, shared: str
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", shared)
    with pytest.raises(RuntimeError) as caught:
        group(HashStore(), 1, "127.0.0.1:9", 0.2)
    named = "start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in str(caught.value)
    assert named == isinstance(caught.value, DistBackendError) == ((restarts, shared) == ("1", "True"))
