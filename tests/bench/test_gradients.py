# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench gradients` as a user runs it: the recommender, which needs no other package."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from p4reduce_bench import recordings
from p4reduce_bench.cli import bench
from p4reduce_bench.gradients.layers import ALL, BLOCK_SIZES, OTHER
from p4reduce_bench.gradients.plan import MODELS, missing
from tests.support.interruption import start

TINY = ("--models", "recommender", "--workers", "2", "--steps", "1", "--batch", "64")
REAL = [name for name in MODELS if name != "recommender"]


def gradients(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the benchmark to its end, and return what it wrote."""
    file = folder / "gradients.json"
    process = start("", "bench", "gradients", *arguments, "--json", str(file), TMPDIR=str(folder))
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    assert not list(folder.glob("p4reduce-*")), "temporary files are left"
    made: dict[str, Any] = json.loads(file.read_text())
    assert made["version"] == 1
    return made


@pytest.mark.slow
def test_gradients_are_recorded_measured_and_reduced(tmp_path: Path) -> None:
    kept, plot = tmp_path / "kept", tmp_path / "made" / "plot.png"
    made = gradients(tmp_path, *TINY, "--sparsify", "none,block", "--keep", str(kept), "--repeat", "1", "--warm-up",
                     "0", "--plot", str(plot))  # fmt: skip
    assert plot.read_bytes().startswith(b"\x89PNG")
    found = {(one["sparsifier"], one["layers"], one["block_size"]): one for one in made["gradients"]}
    for kind in ("none", "block"):
        by_element = found[kind, ALL, 1]
        assert by_element["workers"] == 2
        assert 0 < by_element["density"] <= found[kind, ALL, 64]["density"] <= found[kind, ALL, 256]["density"] < 0.2
        assert 1 <= by_element["densification"] <= 2
    assert found["block", ALL, 64]["density"] <= 0.011 < found["none", ALL, 64]["density"]
    assert found["none", "embedding", 64]["density"] < found["none", "feed-forward", 64]["density"]
    assert [(row["sparsifier"], row["system"], row["error"], row["wrong"]) for row in made["rows"]] == [
        (kind, system, None, 0) for kind in ("none", "block") for system in ("p4reduce", "gloo")
    ]
    for row in made["rows"]:
        assert row["density"] == pytest.approx(found[row["sparsifier"], ALL, 1]["density"])
        assert row["to_gloo"] > 0
    assert [path.name for path in sorted((kept / "recommender" / "none").iterdir())] == [
        f"gradients-00000001-rank{rank}.npz" for rank in range(2)
    ]
    facts = recordings.find([kept / "recommender" / "none"])[1][0].facts
    again = replayed(tmp_path, kept)
    assert {(one["sparsifier"], one["block_size"]) for one in again} == {
        (kind, size) for kind in ("none", "block") for size in (1, *BLOCK_SIZES)
    }
    assert {one["layers"] for one in again} == {ALL, *(name for bucket in facts.buckets for name in bucket)}
    for one in again:
        if one["layers"] == ALL:
            assert one["density"] == found[one["sparsifier"], ALL, one["block_size"]]["density"]


def replayed(folder: Path, kept: Path) -> list[dict[str, Any]]:
    """Return what --replay measures of each parameter; the command runs in this process."""
    file = folder / "again.json"
    result = CliRunner().invoke(
        bench, ["gradients", "--replay", str(kept), "--systems", "none", "--layers", "--json", str(file)]
    )
    assert result.exit_code == 0, result.output
    made = json.loads(file.read_text())
    assert made["rows"] == []
    measured: list[dict[str, Any]] = made["gradients"]
    return measured


@pytest.mark.slow
def test_peers_reduce_recordings_too(tmp_path: Path) -> None:
    systems = ["p4reduce-coo", "gloo", "gloo-sparse", "gloo-fp16", "gloo-int8", "oktopk", "zen", "gtopk"]
    made = gradients(tmp_path, *TINY, "--sparsify", "element", "--systems", ",".join(systems), "--repeat", "2")
    assert [(row["system"], row["error"], row["wrong"]) for row in made["rows"]] == [
        (system, None, 0) for system in systems
    ]


@pytest.mark.slow
@pytest.mark.parametrize("model", REAL)
def test_real_architectures(tmp_path: Path, model: str) -> None:
    if reason := missing(model):
        pytest.skip(reason)
    made = gradients(tmp_path, "--models", model, "--workers", "2", "--steps", "1", "--batch", "2", "--repeat", "1",
                     "--sparsify", "none,element")  # fmt: skip
    assert [(row["error"], row["wrong"]) for row in made["rows"]] == [(None, 0)] * 4
    found = {(one["sparsifier"], one["layers"], one["block_size"]): one for one in made["gradients"]}
    assert ("none", OTHER, 1) not in found, "each layer is of a kind"
    assert found["none", ALL, 1]["density"] > 0.2
    assert found["element", ALL, 1]["density"] == pytest.approx(0.01, rel=0.1)
    if model == "bert":
        assert found["none", "embedding", 1]["density"] < 0.1 < found["none", "attention", 1]["density"]
    if model in ("bert-mlm", "gpt2"):
        assert found["none", "embedding", 1]["density"] > 0.9
