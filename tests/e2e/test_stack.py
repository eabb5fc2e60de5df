# SPDX-License-Identifier: Apache-2.0
"""Real processes from switch to rank: every result is held against the reference, bit for bit."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

import pytest

from p4reduce.protocol.numbers import WIRES

from .conftest import Setting, over_udp
from .rank import Call
from .stack import Stack

SHAPES = [
    Call(()),
    Call((0,)),
    Call((1,)),
    Call((257,), dtype="int32", density=1.0),
    Call((3, 5, 70), seed=1),
    Call((20_000,), density=0.05, seed=2),
    Call((10_000,), density=0.0),
    Call((33, 100), dtype="float16", density=0.5, strided=True, seed=3),
    Call((5000,), op="average", seed=4),
    Call((130, 40), density=1.0, strided=True, seed=5),
    Call((5000,), wire="int16", density=0.7, seed=6),
    Call((6000,), wire="int8", op="average", seed=7),
    Call((90, 100), layout="elements", scattered=True, seed=8),
    Call((9000,), dtype="float16", layout="elements", op="average", scattered=True, seed=9),
]


# Every form in which values of every dtype travel, by blocks and by elements.
FORMS = [
    Call((size,), dtype=dtype, wire=wire, layout=layout, op=op, scattered=layout == "elements", density=0.3, seed=seed)
    for seed, (dtype, wire) in enumerate(
        [("int32", "int32"), *((dtype, wire) for dtype in ("float32", "float16", "bfloat16") for wire in WIRES)], 20
    )
    for layout, size, op in (
        ("blocks", 1500, "sum"),
        ("elements", 2500, "sum" if dtype == "int32" else "average"),
    )
]


def finish(setting: Setting, calls: list[Call], job: str, **options: object) -> None:
    """Runs a job whose ranks must all end well."""
    with setting.stack.ranks(calls, job=job, **setting.options, **options) as ranks:  # type: ignore[arg-type]
        for rank, last in ranks.wait_for_ends(120).items():
            assert "stats" in last, f"rank {rank} of {job}: {last}"
            assert last["stats"]["operations"] == sum(call.operations for call in calls) + 1  # the last is a barrier


def test_every_shape_and_dtype(setting: Setting) -> None:
    finish(setting, SHAPES, "shapes")


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0, 0.02])
def test_every_form_of_every_dtype(setting: Setting, loss: float) -> None:
    pytest.importorskip("torch", reason="needs torch, for bfloat16")
    with setting.stack.losing(loss) if loss else contextlib.nullcontext():
        finish(setting, FORMS, "forms", world_size=3)


@pytest.mark.parametrize("world_size", [1, 3])
def test_other_numbers_of_ranks(udp_stack: Stack, world_size: int) -> None:
    finish(Setting(udp_stack), SHAPES[:5], f"{world_size} ranks", world_size=world_size)


def test_two_jobs_at_once(setting: Setting) -> None:
    calls = [[Call((3000,), seed=seed) for seed in range(start, start + 5)] for start in (10, 20)]
    with (
        setting.stack.ranks(calls[0], job="one", world_size=2, **setting.options) as one,
        setting.stack.ranks(calls[1], job="two", world_size=2, **setting.options) as two,
    ):
        for ranks in (one, two):
            assert all("stats" in last for last in ranks.wait_for_ends(120).values())


def test_a_killed_rank_ends_the_job_for_the_others(setting: Setting) -> None:
    calls = [Call((2000,), seed=seed) for seed in range(10)]
    with setting.stack.ranks(calls, job="killed", world_size=3, repeat=True, **setting.options) as ranks:
        ranks.wait_for("done")
        ranks.kill(1)
        killed_at = time.monotonic()
        ranks.wait_for("error", timeout=5)
        assert time.monotonic() - killed_at < 5
        for events in (ranks.events[0], ranks.events[2]):
            assert events[-1]["error"] == "JobAborted"
            assert events[-1]["rank"] == 1
            assert "rank 1" in events[-1]["message"]
        ranks.wait_for_ends()
    finish(setting, [Call()], "killed", world_size=3)  # the name and its slots are free again


def test_ranks_that_forget_to_leave_end_well(udp_stack: Stack) -> None:
    """Each leaves at the interpreter's exit; if one did not, the others' exits would take two seconds of grace."""
    for _ in range(3):
        with udp_stack.ranks([Call()], job="forgotten", forget=True) as ranks:
            ranks.wait_for("stats")
            said_at = time.monotonic()
            assert all("stats" in last for last in ranks.wait_for_ends(60).values())
            assert time.monotonic() - said_at < 1.9


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
    """None of them can wait for those behind it."""
    monkeypatch.setenv("P4REDUCE_LOCAL", local)
    command = [sys.executable, "-c", IN_ONE_PROCESS, udp_stack.controller, how]
    for _ in range(2):  # the first job ended well, or its name would still be taken
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "[2.0, 2.0]\n", "")
        assert time.monotonic() - began < 15


def test_ranks_that_differ_are_told(setting: Setting) -> None:
    calls = {0: [Call((100,))], 1: [Call((200,))]}
    with setting.stack.ranks([], calls_of=calls, job="mismatch", world_size=2, **setting.options) as ranks:
        for last in ranks.wait_for_ends().values():
            assert last["error"] == "MismatchError"
            assert "different operations" in last["message"]


def test_a_rank_that_does_not_call_is_named(setting: Setting) -> None:
    calls = {0: [Call()], 1: [Call(pause=4.0)]}
    with setting.stack.ranks([], calls_of=calls, job="timeout", world_size=2, timeout=2.0, **setting.options) as ranks:
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
    with setting.stack.losing(0.05), setting.stack.ranks(SHAPES, job="lossy", **setting.options) as ranks:
        lasts = ranks.wait_for_ends(120).values()
        assert all("stats" in last for last in lasts), lasts
        assert sum(last["stats"]["retransmissions"] for last in lasts) > 0


def test_a_controller_may_start_with_loss() -> None:
    with over_udp("--drop-rate", "0.05") as stack, stack.ranks(SHAPES, job="lossy") as ranks:
        lasts = ranks.wait_for_ends(120).values()
        assert all("stats" in last for last in lasts), lasts
        assert sum(last["stats"]["retransmissions"] for last in lasts) > 0
