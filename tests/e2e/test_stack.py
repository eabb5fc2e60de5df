# SPDX-License-Identifier: Apache-2.0
"""Real processes from switch to rank: every result is held against the reference, bit for bit."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

import pytest

from tests.support.cluster.calls import FORMS, SHAPES, finish
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import REPEATED, Setting, Stack, over_udp

from .ways import ONE_SWITCH

EVERY_WAY = pytest.mark.parametrize(
    "setting", [*ONE_SWITCH, "aggregators", "tree", "threads", "hosts", "memory"], indirect=True
)
BOTH_ENGINES = {0: "c", 1: "python", 2: "python", 3: "c"}


def test_every_shape_and_dtype(setting: Setting) -> None:
    finish(setting, SHAPES, "shapes")


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0, 0.02])
def test_every_form_of_every_dtype(setting: Setting, loss: float) -> None:
    pytest.importorskip("torch", reason="needs torch, for bfloat16")
    with setting.stack.losing(loss) if loss else contextlib.nullcontext():
        finish(setting, FORMS, "forms", world_size=3)


@pytest.mark.parametrize("loss", [pytest.param(0, marks=pytest.mark.slow), 0.02])
@pytest.mark.parametrize("setting", ["native-udp", "aggregators", "tree"], indirect=True)
def test_ranks_may_be_of_either_kind(setting: Setting, loss: float) -> None:
    """C and Python stripe slots over aggregators alike, or the sums would be wrong. Every port loses packets."""
    with setting.stack.losing(loss), setting.ranks(SHAPES, job="mixed", backends=BOTH_ENGINES) as ranks:
        ranks.end_well(150, loss=loss > 0)


@pytest.mark.parametrize("world_size", [1, 3])
def test_other_numbers_of_ranks(udp_stack: Stack, world_size: int) -> None:
    finish(Setting(udp_stack), SHAPES[:5], f"{world_size} ranks", world_size=world_size)


def test_two_jobs_at_once(setting: Setting) -> None:
    calls = [[Call((3000,), seed=seed) for seed in range(start, start + 5)] for start in (10, 20)]
    with (
        setting.ranks(calls[0], job="one", world_size=2) as one,
        setting.ranks(calls[1], job="two", world_size=2) as two,
    ):
        for ranks in (one, two):
            ranks.end_well(120)


@EVERY_WAY
def test_a_killed_rank_ends_the_job_for_the_others(setting: Setting) -> None:
    with setting.ranks(REPEATED, job="killed", world_size=3, repeat=True) as ranks:
        ranks.wait_for("done")
        ranks.kill_and_end(1)
    finish(setting, [Call()], "killed", world_size=3)  # the name and its slots are free again


def test_ranks_that_forget_to_leave_end_well(udp_stack: Stack) -> None:
    """Each rank leaves at the interpreter's exit. Otherwise the others' exits would take 30 seconds of grace."""
    for _ in range(3):
        with udp_stack.ranks([Call()], job="forgotten", forget=True) as ranks:
            ranks.wait_for("stats")
            said_at = time.monotonic()
            ranks.end_well(60)
            assert time.monotonic() - said_at < 20


IN_ONE_PROCESS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from p4reduce import Communicator

def join(rank):
    return Communicator(sys.argv[1], job="one process", rank=rank, world_size=2, timeout=20)

with ThreadPoolExecutor(2) as pool:
    ranks = list(pool.map(join, range(2)))
    print([float(out[0]) for out in pool.map(lambda one: one.allreduce(np.ones(64, np.float32)), ranks)], flush=True)
    if sys.argv[2] == "closed":
        for one in ranks:
            one.close()
"""


@pytest.mark.parametrize("local", ["off", "auto"])
@pytest.mark.parametrize("how", ["closed", "forgotten"])
def test_ranks_of_one_process_leave_one_after_the_other(
    udp_stack: Stack, how: str, local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank cannot wait for those that leave after it in the same process."""
    monkeypatch.setenv("P4REDUCE_LOCAL", local)
    command = [sys.executable, "-c", IN_ONE_PROCESS, udp_stack.controller, how]
    for _ in range(2):  # the first job ended well, or its name would still be taken
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "[2.0, 2.0]\n", "")
        assert time.monotonic() - began < 15


@EVERY_WAY
def test_ranks_that_differ_are_told(setting: Setting) -> None:
    calls = {0: [Call((100_000,))], 1: [Call((200,))]}
    with setting.ranks([], calls_of=calls, job="mismatch", world_size=2) as ranks:
        lasts = ranks.wait_for_ends().values()
    told = [last["message"] for last in lasts if last["error"] == "MismatchError"]
    assert told, lasts
    assert all("different operations" in message for message in told)
    if len(setting.stack.switches) > 1 or "threads" in setting.options:
        # A rank that reads late may learn from one switch that the other rank has left before another switch says why.
        assert all(last["error"] in ("MismatchError", "JobAborted") for last in lasts), lasts
    else:
        assert len(told) == 2, lasts


@pytest.mark.parametrize("setting", ["native-udp", "tree", "hosts", "memory"], indirect=True)
def test_a_rank_that_does_not_call_is_named(setting: Setting) -> None:
    check_that_who_does_not_call_is_named(setting)


@pytest.mark.slow
@EVERY_WAY
def test_a_rank_that_does_not_call_is_named_in_every_way(setting: Setting) -> None:
    check_that_who_does_not_call_is_named(setting)


def check_that_who_does_not_call_is_named(setting: Setting) -> None:
    calls = {0: [Call((20_000,), timeout=4.0)], 1: [Call((20_000,), pause=8.0)]}
    with setting.ranks([], calls_of=calls, job="timeout", world_size=2) as ranks:
        last = ranks.wait_for_ends()[0]
    assert last["error"] == "CollectiveTimeout", last
    assert last["awaited"] == [1]
    assert "rank 1" in last["message"]


def test_a_rank_that_never_comes_is_named(udp_stack: Stack) -> None:
    with udp_stack.ranks([Call()], job="absent", world_size=3, present=[0, 2], timeout=2.0) as ranks:
        for last in ranks.wait_for_ends().values():
            assert last["error"] == "JoinError"
            assert "rank 1" in last["message"] or "ranks that have not joined: 1" in last["message"]


def test_loss_changes_nothing(setting: Setting) -> None:
    with setting.stack.losing(0.05), setting.ranks(SHAPES, job="lossy") as ranks:
        ranks.end_well(120, loss=True)


def test_a_controller_may_start_with_loss() -> None:
    with over_udp("--drop-rate", "0.05") as stack, stack.ranks(SHAPES, job="lossy") as ranks:
        ranks.end_well(120, loss=True)
