# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench train` as a user runs it: tiny trainings."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from p4reduce_bench.gradients.plan import missing
from p4reduce_bench.processes.children import ChildFailed
from p4reduce_bench.training import architectures, trainings, workloads
from tests.support.interruption import start

LINKS = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2")
FIELDS = {"model", "system", "hook", "workers", "link_gbps", "seed", "steps_per_s", "samples_per_s", "final_loss",
          "tx_bytes", "counted", "losses", "ends", "sent", "evaluated", "held_out"}  # fmt: skip
STEPS = 6
TABLES = {"recommender", "ncf", "lstm"}
"""Models whose gradients are mostly those of tables."""


def train(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the benchmark to its end, and return what it wrote."""
    file = folder / "train.json"
    process = start("", "bench", "train", *arguments, "--json", str(file))
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    made: dict[str, Any] = json.loads(file.read_text())
    assert made["version"] == 2
    return made


def test_the_models_are_those_of_the_command() -> None:
    assert tuple(workloads.WORKLOADS) == trainings.MODELS


def test_the_systems_that_are_trained_by_default() -> None:
    assert trainings.systems(losses=False) == ["gloo", "p4reduce", "p4reduce-topk", "noop"]
    assert set(trainings.systems(losses=True)) == set(trainings.HOOKS) - {"noop"}


@pytest.mark.slow
@pytest.mark.parametrize("model", trainings.MODELS)
def test_all_systems_train_it(tmp_path: Path, model: str) -> None:
    plot = tmp_path / "made" / "plot.png"
    names = ",".join(trainings.HOOKS)
    made = train(tmp_path, "--model", model, "--systems", names, "--steps", str(STEPS), "--plot", str(plot))
    rows = {row["system"]: row for row in made["rows"]}
    assert list(rows) == list(trainings.HOOKS)
    for system, row in rows.items():
        assert row.keys() >= FIELDS
        assert (row["model"], row["hook"], row["workers"]) == (model, trainings.HOOKS[system], 2)
        assert len(row["losses"]) == len(row["ends"]) == len(row["sent"]) == STEPS
        assert row["ends"] == sorted(row["ends"])
        assert row["sent"] == sorted(row["sent"])
        assert row["steps_per_s"] > 0
        if system != "noop":
            assert row["evaluated"] == [0, 1, 3, 6]
            assert len(row["held_out"]) == 4
            assert row["held_out"][-1] == row["final_loss"]
            assert row["held_out"][0] == rows["gloo"]["held_out"][0]
    gloo, ours, sparse, noop = (rows[name] for name in trainings.systems(losses=False))
    assert ours["losses"] == pytest.approx(gloo["losses"], rel=1e-4)
    assert ours["final_loss"] == pytest.approx(gloo["final_loss"], rel=1e-4)
    assert noop["final_loss"] is None
    for system, near in (("p4reduce-int16", 2e-3), ("gloo-bf16", 2e-3), ("gloo-fp16", 2e-3), ("p4reduce-int8", 2e-2)):
        assert rows[system]["held_out"][1] == pytest.approx(ours["held_out"][1], rel=near), system
        assert rows[system]["losses"] != ours["losses"]
    # On a busy machine, late packets are retransmitted.
    assert 0 < ours["tx_bytes"] < 8 * ours["parameters"]
    assert gloo["tx_bytes"] == 2 * rows["gloo-bf16"]["tx_bytes"] == 4 * gloo["parameters"]
    assert 0 < rows["oktopk"]["tx_bytes"] < 4 * 0.06 * ours["parameters"]
    if model not in TABLES:
        assert 0 < sparse["tx_bytes"] < ours["tx_bytes"] / 4
        assert rows["p4reduce-element-topk"]["tx_bytes"] < ours["tx_bytes"] / 4
    by_size = {one["block_size"]: one for one in made["gradients"]}
    assert 0 < by_size[1]["density"] <= by_size[64]["density"] <= 1
    assert (by_size[64]["density"] < 0.25) == (model in TABLES)
    assert 1 <= by_size[64]["densification"] <= 2
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_before_the_start_iteration_all_is_sent(tmp_path: Path) -> None:
    names = ("p4reduce", "p4reduce-int8", "p4reduce-topk", "p4reduce-element-topk", "oktopk")
    options = ("--systems", ",".join(names), "--steps", "5", "--start-iteration", "4")
    made = train(tmp_path, "--model", "bert", *options)
    exact, *others = (row["losses"] for row in made["rows"])
    for name, losses in zip(names[1:], others, strict=True):
        assert losses == pytest.approx(exact, rel=1e-5), name
    whole, *fewer = (row["sent"][4] - row["sent"][3] for row in made["rows"])
    assert max(fewer) < whole / 2


@pytest.mark.slow
@pytest.mark.parametrize("model", trainings.REAL)
def test_real_architectures(tmp_path: Path, model: str) -> None:
    if reason := missing(model):
        pytest.skip(reason)
    made = train(tmp_path, "--model", model, "--systems", "gloo,p4reduce,p4reduce-int8", "--steps", "4")
    gloo, ours, int8 = made["rows"]
    assert ours["losses"] == pytest.approx(gloo["losses"], rel=1e-3)
    assert int8["losses"] == pytest.approx(gloo["losses"], rel=0.1)
    assert ours["held_out"][-1] != ours["held_out"][0], "a step changes it"


def test_an_architecture_is_measured_on_what_it_was_not_trained_on() -> None:
    """Evaluation uses other data than training, and no dropout. The recommender needs no packages."""
    workload = architectures.Architecture("recommender")
    (held_out,) = workload.draw_held_out(workload.held_out, torch.Generator())
    drawn = torch.cat([workload.draw(1000, torch.Generator().manual_seed(seed))[0] for seed in range(20)])
    assert drawn.max() < held_out.min()
    net = workload.model()
    assert len(workload.optimizer(net).param_groups[0]["params"]) == len(list(net.parameters()))
    net(drawn[:4])
    assert net.module.training
    with torch.no_grad():
        assert torch.equal(net(held_out), net(held_out))
    assert not net.module.training


@pytest.mark.parametrize("model", trainings.MODELS)
def test_it_learns(model: str) -> None:
    """One rank alone trains, and is measured on batches that it has not seen before."""
    torch.manual_seed(1)
    workload = workloads.WORKLOADS[model]()
    net = workload.model()
    optimizer = workload.optimizer(net)
    generator = torch.Generator().manual_seed(1)
    held_out = workload.draw_held_out(workload.held_out // 4, torch.Generator().manual_seed(0))

    def loss() -> float:
        with torch.no_grad():
            return float(net(*held_out))

    before = loss()
    for _ in range(40):
        optimizer.zero_grad()
        net(*workload.draw(workload.batch, generator)).backward()
        optimizer.step()
    assert loss() < before * LEARNT[model]


LEARNT = {"recommender": 0.98, "ncf": 0.98, "lstm": 0.9, "bert": 0.9, "resnet": 0.9}


@LINKS
@pytest.mark.root
@pytest.mark.serial
@pytest.mark.slow
def test_on_a_link_all_bytes_are_counted(tmp_path: Path) -> None:
    made = train(tmp_path, "--model", "bert", "--systems", "gloo,p4reduce,noop", "--steps", "4", "--link", "400mbit")
    gloo, ours, _ = made["rows"]
    for row in (gloo, ours):
        assert row["link_gbps"] == 0.4
        assert 4 * row["parameters"] < row["tx_bytes"] < 4.8 * row["parameters"]
        assert 1 / row["steps_per_s"] > row["tx_bytes"] * 8 / 400e6 * 0.9
    assert ours["losses"] == pytest.approx(gloo["losses"], rel=1e-4)


def test_figures_are_those_of_their_run_whichever_rank_is_read_first() -> None:
    """Rank 0 has finished both runs before anything that rank 1 prints is read."""
    runs = [trainings.Run("ncf", system, 1) for system in ("gloo", "p4reduce")]
    child: Any = None  # nobody asks which it was
    ends = [{"run": number, "rank": rank, "loss": 10 * number + rank} for rank in range(2) for number in range(2)]
    said = [{"step": 0, "loss": 1.0}, ends[0], {"step": 0, "loss": 2.0}, *ends[1:]]
    got = list(trainings.collect(runs, 2, iter([(child, event) for event in said])))
    assert got == [
        trainings.Step(runs[0], 0, 1.0),
        trainings.Step(runs[1], 0, 2.0),
        trainings.Done(runs[0], {0: ends[0], 1: ends[2]}),
        trainings.Done(runs[1], {0: ends[1], 1: ends[3]}),
    ]
    with pytest.raises(ChildFailed, match="ended early"):
        list(trainings.collect(runs, 2, iter([(child, event) for event in ends[:3]])))
