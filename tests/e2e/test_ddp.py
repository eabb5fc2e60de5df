# SPDX-License-Identifier: Apache-2.0
"""DDP training in real processes: the hooks, a checkpoint, and a rank that dies."""

from __future__ import annotations

import json
import signal
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from p4reduce_bench.processes.children import Child
from p4reduce_bench.recordings import find
from tests.support.cluster.stack import Event, Ranks, Stack

from .ddp_rank import WIDTH, WORDS, Training, batch

RANK = Path(__file__).with_name("ddp_rank.py")

TOP_K = {"hook": "top-k", "knobs": {"ratio": 0.1}}
REUSED = {"hook": "top-k", "knobs": {"ratio": 0.1, "exact_every": 3}}
RATIO = {"hook": "top-k", "knobs": {"ratio": 0.1, "by": "update ratio"}}
ELEMENTS = {"hook": "elements", "knobs": {"ratio": 0.05}}
THRESHOLD = {"hook": "threshold", "knobs": {"threshold": 0.05}}
RANDOM_K = {"hook": "random-k", "knobs": {"ratio": 0.1}}
HOSTS = {"hook": "hierarchical", "knobs": {"local_world_size": 2, "job": "hosts"}}


def start(
    stack: Stack, job: str, trainings: Sequence[Training], folder: Path, *, ranks: int = 2, **options: Any
) -> Ranks:
    """Start ranks that run the trainings one after the other."""
    children = {}
    rendezvous = folder / f"rendezvous-{uuid.uuid4()}"
    for rank in range(ranks):
        plan = {
            "options": {"controller": stack.controller, "job": job, "rank": rank, "world_size": ranks, **options},
            "trainings": [asdict(training) for training in trainings],
            "rendezvous": str(rendezvous),
        }
        command = [sys.executable, str(RANK), json.dumps(plan)]
        children[rank] = Child(f"rank {rank} of {job}", command, {"GLOO_SOCKET_IFNAME": "lo"})
    return Ranks(children)


def run(stack: Stack, job: str, trainings: Sequence[Training], folder: Path, *, ranks: int = 2) -> list[Event]:
    """Run trainings, and return for each the losses of all ranks and the values that all ranks must agree on."""
    with start(stack, job, trainings, folder, ranks=ranks) as started:
        started.wait_for_ends(200)
        assert {len(events) for events in started.events.values()} == {len(trainings)}, started.events
        found = []
        for one, *others in zip(*(started.events[rank] for rank in range(ranks)), strict=True):
            assert "error" not in one, one
            if any(other["digest"] != one["digest"] for other in others):
                raise AssertionError("the ranks' weights differ")
            found.append({**one, "losses": [event["losses"] for event in (one, *others)]})
        return found


def curve(event: Event) -> list[float]:
    """Return all ranks' losses, one rank after the other."""
    return [loss for losses in event["losses"] for loss in losses]


def test_the_lossless_hook_trains_as_gloo_does(native_udp_stack: Stack, tmp_path: Path) -> None:
    gloo, ours, again, one_bucket = run(
        native_udp_stack, "lossless", [Training(hook=""), Training(), Training(), Training(bucket_mb=25)], tmp_path
    )
    assert ours["buckets"] > 2 * 6 > one_bucket["buckets"]
    assert curve(ours) == pytest.approx(curve(gloo), rel=1e-5)
    assert curve(ours)[5] < curve(ours)[0] - 0.1
    assert (again["digest"], again["losses"]) == (ours["digest"], ours["losses"])
    assert one_bucket["losses"] == ours["losses"]  # what shares a block does not depend on buckets here


def test_sparsifiers_train_on_all_ranks_alike(native_udp_stack: Stack, tmp_path: Path) -> None:
    kinds = (TOP_K, REUSED, RATIO, ELEMENTS, THRESHOLD, RANDOM_K)
    found = run(native_udp_stack, "sparse", [Training(**kind, steps=10) for kind in kinds for _ in range(2)], tmp_path)
    for first, second in zip(found[::2], found[1::2], strict=True):
        assert (first["digest"], first["losses"]) == (second["digest"], second["losses"])
        assert first["stats"]["iterations"] == 10
        assert first["stats"]["residual_norm"] > 0
        assert 0 < first["stats"]["blocks_sent"] < 0.5 * first["stats"]["blocks"]
    assert len({event["digest"] for event in found}) == len(kinds)


@pytest.mark.slow
def test_hosts_of_two_ranks_train_as_four_ranks_do(native_udp_stack: Stack, tmp_path: Path) -> None:
    kinds = ({}, HOSTS, {**HOSTS, "bucket_mb": 25}, {**HOSTS, "bucket_mb": 0.0001}, {**HOSTS, "wrapper": "bf16"})
    four, *hosts, rounded = run(native_udp_stack, "four", [Training(**kind) for kind in kinds], tmp_path, ranks=4)
    for found in hosts:
        assert curve(found) == pytest.approx(curve(four), rel=1e-5)
    assert hosts[0]["buckets"] > hosts[1]["buckets"]
    assert curve(rounded) == pytest.approx(curve(four), rel=2e-2)
    assert rounded["digest"] != hosts[0]["digest"]


@pytest.mark.slow
def test_of_a_host_whose_rank_dies_all_ranks_hear(native_udp_stack: Stack, tmp_path: Path) -> None:
    dying = Training(**HOSTS, steps=100, die=3, dies=3)
    with start(native_udp_stack, "half", [dying], tmp_path, ranks=4, timeout=20) as ranks:
        assert ranks.children[3].process.wait(200) == -signal.SIGKILL
        ranks.children.pop(3).stop()
        ends = ranks.wait_for_ends(60)
    for rank in range(3):
        assert ends[rank]["step"] == 3
        assert ends[rank]["seconds"] < 15
    assert "rank 1" in ends[1]["message"]  # of its job, which is the second of each host's
    assert "hierarchical allreduce of bucket" in ends[2]["message"]


@pytest.mark.slow
def test_recorded_gradients_are_those_of_each_rank(native_udp_stack: Stack, tmp_path: Path) -> None:
    folder = tmp_path / "gradients"
    plain, recorded = run(native_udp_stack, "recorded", [Training(), Training(record=str(folder))], tmp_path)
    assert recorded["digest"] == plain["digest"]
    found = find([folder])
    assert {iteration: len(ranks) for iteration, ranks in found.items()} == {2: 2, 4: 2}
    for ranks in found.values():
        assert ranks[0].facts.buckets == ranks[1].facts.buckets
        assert len(ranks[0].facts.buckets) == 3
        one, other = (rank.masks()["0.weight"].reshape(WORDS, WIDTH).any(axis=1) for rank in ranks)
        # Each row that is not zero is a word of the batch.
        for rank, rows in enumerate((one, other)):
            words, _ = batch(ranks[0].facts.iteration, rank)
            assert set(rows.nonzero()[0]) == set(words.view(-1).tolist())


@pytest.mark.slow
def test_a_rank_that_dies_ends_all_others_and_a_checkpoint_goes_on(native_udp_stack: Stack, tmp_path: Path) -> None:
    common, timeout = {**THRESHOLD, "checkpoint": str(tmp_path)}, 20
    dying = Training(**common, save=3, steps=100, die=4, dies=1)
    with start(native_udp_stack, "cut", [dying], tmp_path, ranks=3, timeout=timeout) as ranks:
        assert ranks.children[1].process.wait(200) == -signal.SIGKILL
        ranks.children.pop(1).stop()
        ends = ranks.wait_for_ends(60)
    for rank in (0, 2):
        last = ends[rank]
        assert last["step"] == 4
        assert last["error"] in ("JobAborted", "CollectiveTimeout")
        assert "rank 1" in last["message"]
        assert last["seconds"] < timeout + 1
    resumed, whole = run(
        native_udp_stack, "cut", [Training(**common, load=3), Training(**THRESHOLD)], tmp_path, ranks=3
    )
    assert resumed["digest"] == whole["digest"]
    assert resumed["losses"] == [losses[3:] for losses in whole["losses"]]
    assert resumed["stats"]["residual_norm"] > 0
