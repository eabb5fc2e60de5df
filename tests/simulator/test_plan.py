# SPDX-License-Identifier: Apache-2.0
"""`p4reduce plan`: extrapolated times are those of the whole, and it says what binds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from p4reduce.commands.cli import app
from p4reduce.errors import P4ReduceError
from p4reduce_simulator import Host, Link, Network, Switch, Workload, clos, star
from p4reduce_simulator.peers.comparison import BY_ELEMENTS, compare
from p4reduce_simulator.peers.support import Support
from p4reduce_simulator.plan.gradients import Drawn, Recorded
from p4reduce_simulator.plan.models import MODELS
from p4reduce_simulator.plan.planning import Setup, changes_of, estimate, plan

ENGINE = Host(460e-9, 0, 460e-9, 0, 71e-12, 3e-9, 70e-9)
WHOLE = 1 << 23


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["plan", *arguments])
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("network", "density", "pattern", "within"),
    [
        (star(4), 1.0, "blocks", 0.05),
        pytest.param(star(4, Link(rate=10**10)), 0.1, "blocks", 0.05, marks=pytest.mark.slow),
        (star(8), 0.01, "elements", 0.05),
        pytest.param(star(8, host=ENGINE), 0.001, "elements", 0.05, marks=pytest.mark.slow),
        (clos(8, 2, 1), 0.01, "rows", 0.1),
        pytest.param(star(4), 0.01, "runs", 0.05, marks=pytest.mark.slow),
        pytest.param(star(4, host=ENGINE), 0.3, "blocks", 0.05, marks=pytest.mark.slow),
        pytest.param(clos(8, 2, 1), 1.0, "blocks", 0.05, marks=pytest.mark.slow),
        (star(4, Link(rate=10**9, delay=20e-6)), 0.05, "clustered", 0.1),  # a sample has few clusters
        (clos(8, 2, 2), 0.1, "blocks", 0.1),  # slots bind, and in a sample the fullest slot has more than its share
    ],
)
def test_the_times_are_those_of_simulations_of_the_whole(
    network: Network, density: float, pattern: str, within: float
) -> None:
    """For p4reduce and the others, from samples of half the elements or less."""
    systems = ["ring", "halving-doubling", "sparcml", "oktopk", "zen"]
    ours = [BY_ELEMENTS] if pattern in ("elements", "rows", "runs") else []
    workload = Workload(density=density, pattern=pattern)
    planned = plan(Setup(network, slots=32), Drawn("drawn", WHOLE, workload), ours + systems)
    assert all(numel <= WHOLE // 2 for numel, _ in planned.ours.samples)
    whole = compare(network, replace(workload, numel=WHOLE), ["p4reduce", *ours], slots=32)
    assert planned.ours.time == pytest.approx(whole.time("p4reduce"), rel=within)
    for system in ours:
        assert planned.others[system].time == pytest.approx(whole.time(system), rel=within)
    free = compare(replace(network, host=Host()), replace(workload, numel=WHOLE), systems)
    for system in systems:
        assert planned.others[system].time == pytest.approx(free.time(system), rel=within), system


@pytest.mark.parametrize(
    ("network", "slots", "binds"),
    [
        (star(4, Link(rate=10**9)), 64, "the link"),
        (star(4, host=ENGINE), 64, "the processor"),
        (star(4, Link(delay=50e-6)), 8, "round trips"),
        (star(4, Link(delay=50e-6), switch=Switch(delay=0)), 8, "round trips"),
    ],
)
def test_a_plan_says_what_binds(network: Network, slots: int, binds: str) -> None:
    planned = plan(Setup(network, slots), Drawn("drawn", 1 << 19, Workload()), ["ring"])
    assert planned.binds == binds
    assert planned.worthwhile()[0].relieves == binds
    times = [change.estimate.time for change in planned.changes]
    assert times == sorted(times)
    if binds == "round trips":
        assert "4 times the slots" in [change.name for change in planned.worthwhile()]


def test_changes_change_one_thing() -> None:
    setup = Setup(star(4, Link(delay=1e-6), host=ENGINE), 64)
    changed = {name: other for name, _, other in changes_of(setup)}
    assert changed["links twice as fast"].network.edge == replace(setup.network.edge, rate=2 * 10**11)
    assert changed["no delays"].network.edge.delay == changed["no delays"].network.switch.delay == 0
    assert changed["4 times the slots"] == replace(setup, slots=256)
    assert changed["twice the engine threads"].network.host.receive == 230e-9
    assert changed["blocks of 256"] == replace(setup, block_size=256)


def test_a_small_gradient_is_simulated_as_a_whole() -> None:
    asked: list[int] = []

    def measure(support: Support) -> float:
        asked.append(support.numel)
        return 1.0 + support.numel

    small = Drawn("drawn", 1000, Workload())
    assert estimate(measure, small, 250, 2).time == 1001
    assert asked == [1000]
    assert estimate(measure, small, 60, 2, dense=True).time == pytest.approx(1001)
    assert asked == [1000, 60, 240]


def recording(folder: Path, files: int, numel: int = 100_000) -> list[np.ndarray]:
    masks = [np.random.default_rng(number).random(numel) < 0.1 for number in range(files)]
    folder.mkdir()
    for number, mask in enumerate(masks):
        half = numel // 2
        values = mask.astype(np.float32) * 1e-9
        np.savez(folder / f"{number}.npz", a=values[:half].reshape(2, -1), b=values[half:])
    return masks


def test_a_recording_is_simulated_with_its_zeros(tmp_path: Path) -> None:
    masks = recording(tmp_path / "recorded", 4)
    gradients = Recorded.read(tmp_path / "recorded", 4, tmp_path)
    assert gradients.numel == 100_000
    whole = Support(gradients.sample(100_000), 4)
    assert whole.nonzero == np.mean([mask.sum() for mask in masks])
    assert whole.union(4) == np.logical_or.reduce(masks).sum()
    part = Support(gradients.sample(20_000), 4)
    assert 16_000 <= part.numel <= 20_480
    assert part.nonzero / part.numel == pytest.approx(0.1, rel=0.05)
    with pytest.raises(P4ReduceError, match="has 4 recordings, of all ranks and steps together, for --workers 5"):
        Recorded.read(tmp_path / "recorded", 5, tmp_path)


def test_models_have_sources() -> None:
    assert all(model.parameters > 10**7 and model.source for model in MODELS.values())


def test_a_plan_on_the_command_line(tmp_path: Path) -> None:
    out, picture = tmp_path / "plan.json", tmp_path / "plan.png"
    code, said = run("resnet50", "--workers", "4", "--density", "0.01", "--slots", "32", "--systems", "ring,zen",
                     "--compute", "100ms", "--json", str(out), "--plot", str(picture))  # fmt: skip
    assert code == 0, said
    assert "resnet50: 25557032 elements" in said
    assert "What binds: " in said
    assert "step is faster by" in said
    found = json.loads(out.read_text())["plan"]
    assert found["speed_ups"]["ring"] > 0
    assert set(found["gains"]) >= {"links twice as fast", "twice the engine threads"}
    assert picture.stat().st_size > 1000


def test_zeros_of_models_and_of_sparsifiers_on_the_command_line() -> None:
    code, said = run("lstm", "--workers", "2", "--slots", "32", "--systems", "ring")
    assert code == 0, said
    assert "lstm: 426465919 elements, 0.05" in said  # of which it draws a sample
    code, said = run("1MiB", "--workers", "4", "--slots", "16", "--density", "0.01", "--pattern", "elements",
                     "--overlap", "0.5", "--host", "index=0ns")  # fmt: skip
    assert code == 0, said
    assert "Blocks that are not zero: 47" in said
    assert "p4reduce-elements is faster here: use allreduce without `layout`" in said


def test_samples_that_are_dominated_by_losses_are_refused() -> None:
    """A plan once said 20 ms for what the links need 51 ms for, as both samples had waited for lost packets."""
    times = iter((0.027, 0.020))
    with pytest.raises(ValueError, match=r"take 27 and 20 ms, .*: use fewer slots, or a larger queue"):
        estimate(lambda _: next(times), Drawn("drawn", 1 << 24, Workload()), 1 << 16, 2, least=32 / 10**11)


def test_a_larger_sample_that_has_fewer_non_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes less time than the smaller one, which is no sign of losses. Its own time is then the estimate."""
    gradients = Drawn("drawn", 1 << 24, Workload())
    monkeypatch.setattr(
        Drawn, "sample", lambda _, numel: Workload(numel, density=0.9 if numel == 1 << 14 else 0.1, overlap="all")
    )
    found = estimate(lambda support: support.union(2) * 1e-9, gradients, 1 << 14, 2, least=1e-9)
    assert found.time == found.samples[1][1] < found.samples[0][1]


def test_recordings_without_elements(tmp_path: Path) -> None:
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", w=np.zeros(0, np.float32))
    assert f"{tmp_path}/a.npz: has no elements" in run(str(tmp_path), "--workers", "2")[1]


def test_one_worker_is_refused() -> None:
    code, said = run("1MiB", "--workers", "1")
    assert code == 2
    assert "--workers" in said


def test_a_plan_of_recorded_gradients(tmp_path: Path) -> None:
    recording(tmp_path / "recorded", 3)
    code, said = run(str(tmp_path / "recorded"), "--workers", "3", "--slots", "16", "--systems", "ring")
    assert code == 0, said
    assert "recorded: 100000 elements" in said
    assert "Simulated as a whole." in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["alexnet"], "alexnet: accepted are resnet50, resnet152"),
        (["1MiB", "--systems", "nccl"], "--systems nccl: accepted are p4reduce-elements, ring"),
        (["1MiB", "--workers", "3", "--systems", "sparcml"], "3 ranks: accepted are powers of two"),
        (["1MiB", "--leaves", "9"], "accepted are at least as many ranks as leaves"),
        (["1MiB", "--host", "send=1"], "--host: send 1: accepted are times"),
        (["0"], "0: accepted are resnet50, resnet152"),
        (["1MiB", "--overlap", "some"], "--overlap some: accepted are random, all, none"),
        (["1MiB", "--pattern", "rows"], "--pattern, --run and --overlap: accepted with --density"),
        (["1MiB", "--spines", "2"], "--spines 2: accepted with --leaves, or more than 32 workers"),
        (["1MiB", "--core", "rate=1gbit"], "--core rate=1gbit: accepted with --leaves"),
    ],
)
def test_errors(arguments: list[str], message: str) -> None:
    code, said = run(*arguments)
    assert code == 1
    assert message in " ".join(said.split())
