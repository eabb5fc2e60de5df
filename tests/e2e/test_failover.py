# SPDX-License-Identifier: Apache-2.0
"""A switch of a job is killed while the ranks work: the job lives, with the right sums."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce.local.host import digest
from tests.support.c_library import needs_c_library
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import REPEATED, Ranks, Stack, go_on, job, kept, over_udp, slots_used, wait_until_back
from tests.support.waiting import wait_until

TWO: dict[str, Any] = {"target": "native", "aggregators": 2}
CLOS: dict[str, Any] = {"target": "native", "leaves": 2, "spines": 2}
SPARE: dict[str, Any] = {**TWO, "spare": 1}
SPARE_SPINE: dict[str, Any] = {**CLOS, "spare": 1}


def trouble(stack: Stack) -> str:
    return "; ".join(job(stack, "job")["in_trouble"])


SHAPES = [(TWO, 1), (TWO, 0), (CLOS, 1), (CLOS, 0), (SPARE, 0), (SPARE_SPINE, 0), (SPARE, 1)]
QUICK = [("c", SPARE_SPINE, 0), ("python", CLOS, 0)]


@pytest.mark.parametrize(
    ("engine", "shape", "killed"),
    [
        pytest.param(engine, *shape, marks=() if (engine, *shape) in QUICK else pytest.mark.slow)
        for engine in ("c", "python")
        for shape in SHAPES
    ],
)
def test_a_job_lives_when_a_switch_is_killed(
    monkeypatch: pytest.MonkeyPatch, engine: str, shape: dict[str, Any], killed: int
) -> None:
    """The killed switch is an aggregator, or the spine of a tree. Later it comes back, without the job."""
    monkeypatch.setenv("P4REDUCE_BACKEND", engine)
    with over_udp(**shape) as stack:
        at = stack.names[shape.get("spines", len(stack.names)) :]
        with stack.ranks(REPEATED, job="job", world_size=4, repeat=True, timeout=60, at=at) as ranks:
            go_on(ranks)
            if "spare" in shape:
                assert slots_at(stack, shape["spare"]) == 0
            stack.switches[killed].process.kill()
            go_on(ranks)
            if killed != shape.get("spare"):
                wait_until(lambda: "went on at" in trouble(stack), "the slots to be elsewhere")
            stack.restart_switch(killed)
            wait_until(lambda: all(one["connected"] for one in stack.status()["switches"]), "the switch to be back")
            go_on(ranks)
        wait_until(lambda: slots_used(stack) == 0, "all slots to be free")


@pytest.mark.parametrize(
    ("shape", "killed", "threads"),
    [
        pytest.param(TWO, 0, 2, marks=pytest.mark.slow),
        pytest.param(TWO, 1, 4, marks=pytest.mark.slow),
        (CLOS, 1, 3),
        pytest.param(CLOS, 0, 2, marks=pytest.mark.slow),
        pytest.param(SPARE, 0, 2, marks=pytest.mark.slow),
        pytest.param(SPARE_SPINE, 0, 3, marks=pytest.mark.slow),
    ],
)
def test_a_job_of_several_threads_lives_when_a_switch_is_killed(
    shape: dict[str, Any], killed: int, threads: int
) -> None:
    needs_c_library()
    with over_udp(**shape) as stack:
        options = {"threads": threads, "slots": 13, "at": stack.names[shape.get("spines", len(stack.names)) :]}
        with stack.ranks(REPEATED, job="job", world_size=4, repeat=True, timeout=60, **options) as ranks:
            go_on(ranks)
            stack.switches[killed].process.kill()
            go_on(ranks)
            wait_until(lambda: "went on at" in trouble(stack), "the slots to be elsewhere")
            stack.restart_switch(killed)
            wait_until(lambda: all(one["connected"] for one in stack.status()["switches"]), "the switch to be back")
            go_on(ranks)
        wait_until(lambda: slots_used(stack) == 0, "all slots to be free")


def slots_at(stack: Stack, switch: int) -> int:
    return int(stack.status()["switches"][switch]["slots_used"])


def test_new_jobs_use_the_spare_only_while_no_other_switch_can_be_used() -> None:
    """A job that began at the spare, or went on there, stays."""
    with over_udp(**SPARE) as stack:
        with stack.ranks(REPEATED, job="job", world_size=2, repeat=True, timeout=60) as ranks:
            go_on(ranks)
            stack.switches[0].process.kill()
            go_on(ranks)
            wait_until(lambda: "went on at" in trouble(stack), "the slots to be elsewhere")
            assert f"went on at {stack.names[1]}" in trouble(stack)
            before = slots_at(stack, 1)
            with stack.ranks(REPEATED, job="second", world_size=2, repeat=True, timeout=60) as second:
                go_on(second)
                assert f"it began at {stack.names[1]}, which is a spare" in job(stack, "second")["in_trouble"]
                assert f"the switch {stack.names[0]} cannot be used" in job(stack, "second")["left_out"][0]
                assert slots_at(stack, 1) > before
                stack.restart_switch(0)
                wait_until(lambda: stack.status()["switches"][0]["state"] == "Ready", "the switch to be back")
                taken = slots_at(stack, 1)
                with stack.ranks(REPEATED, job="third", world_size=2, repeat=True, timeout=60) as third:
                    go_on(ranks, second, third)
                    assert slots_at(stack, 1) == taken
                    assert job(stack, "third")["in_trouble"] == []
        wait_until(lambda: slots_used(stack) == 0, "all slots to be free")


@pytest.mark.parametrize("engine", ["c", pytest.param("python", marks=pytest.mark.slow)])
def test_a_rank_that_has_left_sends_its_last_packet_again(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Rank 1 lacks the last sum, which is lost on the way to its leaf, when the switch that has it is killed."""
    monkeypatch.setenv("P4REDUCE_BACKEND", engine)
    calls = [Call((40,), dtype="int32", seed=seed, pause=3.0 * seed) for seed in range(2)]  # of one round, in slot 0
    with over_udp(**CLOS) as stack:
        options: dict[str, Any] = {"world_size": 2, "at": stack.names[2:], "local": "off", "barrier": False}
        with stack.ranks(calls, job="job", timeout=60, **options) as ranks:
            ranks.wait_for("done")
            lose(stack, stack.names[3], 1)
            ranks.wait_until("the last sum", lambda rank: rank == 1 or len(done(ranks, rank)) == 2)
            wait_until(lambda: leaving(stack) == [True, False], "rank 0 to leave")
            assert len(done(ranks, 1)) == 1
            stack.switches[0].process.kill()
            lose(stack, stack.names[3], 0)
            ranks.end_well()
        assert len(done(ranks, 1)) == 2


def leaving(stack: Stack) -> list[bool]:
    return [member["leaving"] for member in job(stack, "job").get("members", [])]


def done(ranks: Ranks, rank: int) -> list[object]:
    return [event for event in ranks.events[rank] if "done" in event]


def lose(stack: Stack, leaf: str, rate: int) -> None:
    """Let a leaf lose every packet from its parents, or none."""
    with open_grpc_channel(stack.controller) as channel:
        for port in (2, 3):
            request = pb.SetLossRequest(switch=leaf, port=port, direction=pb.IN, rate=rate)
            rpc.JobsStub(channel).SetLoss(request, timeout=60, wait_for_ready=True)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
def test_a_switch_that_is_restarted_at_once(tmp_path: Path, threads: int) -> None:
    """The controller notices that the job's entries are gone, before any rank asks."""
    with kept(tmp_path, **TWO) as stack:
        with stack.ranks(REPEATED, job="job", world_size=3, repeat=True, timeout=60, threads=threads) as ranks:
            go_on(ranks)
            stack.restart_switch(1)
            go_on(ranks)
            wait_until(lambda: "went on at" in trouble(stack), "the slots to be elsewhere")
        wait_until(lambda: slots_used(stack) == 0, "all slots to be free")


@pytest.mark.slow
@pytest.mark.parametrize(("first", "threads"), [("switch", 1), ("controller", 1), ("switch", 2), ("controller", 3)])
def test_the_controller_is_killed_as_well(tmp_path: Path, first: str, threads: int) -> None:
    """The next one takes the slots over, whichever of the two was killed first."""
    with kept(tmp_path, **TWO) as stack:
        with stack.ranks(REPEATED, job="job", world_size=3, repeat=True, timeout=90, threads=threads) as ranks:
            go_on(ranks)
            if first == "controller":
                stack.stop_controller(signal.SIGKILL)
            stack.switches[1].process.kill()
            if first == "switch":
                wait_until(lambda: "on at" in trouble(stack), "the takeover")
                stack.stop_controller(signal.SIGKILL)
            stack.start_controller()
            wait_until_back(stack, "job")
            go_on(ranks)
            wait_until(lambda: "went on at" in trouble(stack), "the slots to be elsewhere")
        stack.restart_switch(1)  # until then, the ended job holds its slots there
        wait_until(lambda: slots_used(stack) == 0, "all slots to be free")


@pytest.mark.slow
def test_the_next_controller_has_to_keep_slots(tmp_path: Path) -> None:
    """It completes the move nevertheless, because no switch has these slots any more."""
    with kept(tmp_path, **TWO) as stack:
        with stack.ranks(REPEATED, job="job", world_size=3, repeat=True, timeout=90, threads=2) as ranks:
            go_on(ranks)
            stack.switches[1].process.kill()
            wait_until(lambda: "went on at" in trouble(stack), "the slots to be elsewhere")
            stack.stop_controller(signal.SIGKILL)
            stack.add_controller_options("--keep-slots")
            stack.start_controller()
            wait_until_back(stack, "job")
            go_on(ranks)
            assert "went on at" in trouble(stack)
        stack.restart_switch(1)
        wait_until(lambda: slots_used(stack) == 0, "all slots to be free")


@pytest.mark.skipif(not digest(), reason="this machine does not let processes share memory")
def test_ranks_of_a_host_whose_leader_sends_for_all() -> None:
    with over_udp(**TWO) as stack:
        options: dict[str, Any] = {"world_size": 5, "hosts": (0, 1, 0, 1, 1), "local": "auto"}
        with stack.ranks(REPEATED, job="job", repeat=True, timeout=60, **options) as ranks:
            go_on(ranks)
            assert len({member["leader"] for member in job(stack, "job")["members"]}) == 2
            stack.switches[1].process.kill()
            go_on(ranks)
            wait_until(lambda: "went on at" in trouble(stack), "the slots to be elsewhere")
            go_on(ranks)
