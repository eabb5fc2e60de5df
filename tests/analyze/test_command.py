# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce analyze`, against the measures taken directly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from p4reduce.commands.cli import app
from p4reduce.tensors.recordings import Facts, path_of, write
from p4reduce_bench.analyze.forms import forms
from p4reduce_bench.analyze.measures import block_mask, expected, measure

RANKS, ITERATIONS = 2, (100, 200, 300)
BUCKETS = [["head"], ["rows", "odd"]]


def gradient(iteration: int, rank: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng([iteration, rank])
    rows = np.zeros((500, 64), np.float32)
    rows[random.choice(500, 40, replace=False)] = 1
    return {"head": np.ones(1000, np.float32), "rows": rows.reshape(-1), "odd": np.zeros(77, np.float32)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for iteration in ITERATIONS:
        # DDP forms its buckets anew: the same parameters, in another order.
        buckets = BUCKETS if iteration == ITERATIONS[0] else [["odd", "rows"], ["head"]]
        for rank in range(RANKS):
            facts = Facts(rank, RANKS, iteration, buckets)
            write(path_of(tmp_path / "gradients", iteration, rank), facts, gradient(iteration, rank))
    return tmp_path / "gradients"


def analyze(*arguments: object) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, ["analyze", *map(str, arguments)])


def figures(folder: Path, *arguments: object) -> dict[str, Any]:
    path = folder.parent / "found" / "figures.json"
    done = analyze(folder, "--json", path, *arguments)
    assert done.exit_code == 0, done.stdout + done.stderr
    made: dict[str, Any] = json.loads(path.read_text())
    return made


def masks(pool: list[tuple[int, int]], names: list[str]) -> np.ndarray:
    return np.stack([np.concatenate([gradient(*one)[name] for name in names]) != 0 for one in pool])


def test_figures_are_the_averaged_measures(folder: Path) -> None:
    found = figures(folder, "--link", "1gbit", "--block-sizes", "64,256")
    assert (found["ranks"], found["workers"], found["iterations"]) == (RANKS, RANKS, list(ITERATIONS))
    assert [row["block_size"] for row in found["rows"]] == [1, 64, 256]
    for size, row in ((64, found["rows"][1]), (256, found["rows"][2])):
        by_iteration, times = [], []
        for iteration in ITERATIONS:
            layout = BUCKETS if iteration == ITERATIONS[0] else [["odd", "rows"], ["head"]]
            pool = [(iteration, rank) for rank in range(RANKS)]
            buckets = [masks(pool, names) for names in layout]
            by_iteration.append(measure(np.concatenate([block_mask(bucket, size) for bucket in buckets], axis=1)))
            times.append(expected(buckets, size, 1e9))
        for name in ("density", "union", "overlap", "densification", "skew"):
            assert row["measures"][name] == pytest.approx(np.mean([getattr(one, name) for one in by_iteration]))
        assert row["expected"]["ring_s"] == pytest.approx(times[0].ring_s)
        assert row["expected"]["switch_s"] == pytest.approx(np.mean([one.switch_s for one in times]))
        assert row["expected"]["speed_up"] == pytest.approx(
            sum(one.ring_s for one in times) / sum(one.switch_s for one in times)
        )
    assert found["rows"][0]["expected"] is None
    by_name = {one["name"]: one for one in found["parameters"]}
    assert by_name["rows"]["elements"]["density"] == pytest.approx(40 / 500)
    assert by_name["rows"]["blocks"]["density"] == pytest.approx(40 / 500)
    assert by_name["odd"]["blocks"]["overlap"] is None


def test_forms_are_those_that_allreduce_chooses_from(folder: Path) -> None:
    fast, slow = (figures(folder, "--link", link, "--block-sizes", "64") for link in ("10gbit", "1mbit"))
    for found, rate in ((fast, 10**10), (slow, 10**6)):
        assert [one["parameters"] for one in found["buckets"]] == [["head"], ["rows", "odd"], ["odd", "rows"]]
        assert [one["iterations"] for one in found["buckets"]] == [3, 1, 2]
        for one, iterations in zip(found["buckets"], (ITERATIONS, [100], [200, 300]), strict=True):
            made = [forms(masks([(i, 0), (i, 1)], one["parameters"]), rate) for i in iterations]
            for wire in ("int32", "int16"):
                for name in ("blocks_bytes", "elements_bytes", "blocks_s", "elements_s", "by_elements"):
                    expected_ = np.mean([getattr(each[wire], name) for each in made])
                    assert one["forms"][wire][name] == pytest.approx(expected_), (one, name)
        rows = next(one for one in found["parameters"] if one["name"] == "rows")
        # Two ranks have 40 rows of 64 each, most of them other ones.
        assert 60 * 64 * 4 < rows["forms"]["int32"]["blocks_bytes"] <= 80 * 64 * 4
        assert rows["forms"]["int32"]["by_elements"] == 0  # which are whole blocks


def test_what_auto_takes_follows_from_the_link(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for rank in range(RANKS):
        values = (random.random(200_000) < 0.02).astype(np.float32)
        write(path_of(tmp_path, 0, rank), Facts(rank, RANKS, 0, [["scattered"]]), {"scattered": values})
    said = {}
    for link in ("1mbit", "100gbit"):
        done = analyze(tmp_path, "--link", link)
        assert done.exit_code == 0, done.stderr
        said[link] = [" ".join(line.split()) for line in done.stdout.splitlines() if "bucket: scattered" in line]
    assert [line.count("elements") for line in said["1mbit"]] == [2]
    assert [line.count("blocks") for line in said["100gbit"]] == [2]


def test_other_iterations_stand_in_for_more_workers(folder: Path) -> None:
    found = figures(folder, "--workers", "3")
    pools = [
        [(100, 0), (100, 1), (200, 0)],
        [(200, 0), (200, 1), (300, 0)],
        [(300, 0), (300, 1), (100, 0)],
    ]
    unions = [measure(masks(pool, ["head", "rows", "odd"])).union for pool in pools]
    assert found["rows"][0]["measures"]["workers"] == 3
    assert found["rows"][0]["measures"]["union"] == pytest.approx(np.mean(unions))
    done = analyze(folder, "--workers", 7)
    assert done.exit_code == 1
    assert "make at most 6" in done.stderr


def test_tables_say_what_the_figures_say(folder: Path) -> None:
    done = analyze(folder, "--parameters", 2)
    assert done.exit_code == 0, done.stderr
    for said in ("blocks of 64", "densification", "speed-up", "10gbit", "│ rows", "│ head", "bucket: odd and 1 more"):
        assert said in done.stdout
    assert "│ odd" not in done.stdout
    assert done.stdout.count("int16 auto") == 1


def test_an_iteration_that_a_rank_lacks_is_left_out_and_named(folder: Path) -> None:
    path_of(folder, 200, 1).unlink()
    done = analyze(folder)
    assert "iteration 200 is left out: not all 2 ranks recorded it" in done.stdout
    for iteration in (100, 300):
        path_of(folder, iteration, 0).unlink()
    done = analyze(folder)
    assert done.exit_code == 1
    assert "no iteration was recorded by all 2 ranks" in done.stderr


def test_other_parameters_are_refused(folder: Path) -> None:
    write(path_of(folder, 300, 1), Facts(1, 2, 300, [["head"]]), {"head": np.ones(7, np.float32)})
    done = analyze(folder)
    assert done.exit_code == 1
    assert "do not hold the same parameters" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--link", "fast"], "--link fast: accepted are rates"),
        (["--block-sizes", "64,100"], "--block-sizes 64,100: accepted are 32, 64, 128, 256"),
    ],
)
def test_options_are_checked(folder: Path, options: list[str], said: str) -> None:
    done = analyze(folder, *options)
    assert done.exit_code == 1
    assert said in done.stderr
    assert not done.stdout


def test_names_are_shown_as_they_are_and_a_full_disk_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", **{"[red]x[/nope]": np.ones(64, np.float32)})
    done = analyze(tmp_path / "one.npz")
    assert "[red]x[/nope]" in done.stdout
    assert done.exit_code == 0
    done = analyze(tmp_path / "one.npz", "--json", "/dev/full")
    assert (done.exit_code, done.stderr) == (1, "error: No space left on device\n")
