# SPDX-License-Identifier: Apache-2.0
"""`p4reduce bench gradients` as a user runs it: the recommender, which needs no other package."""

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from p4reduce_bench.analyze import recordings
from p4reduce_bench.cli import bench
from p4reduce_bench.gradients import models, packages
from p4reduce_bench.gradients.layers import ALL, BLOCK_SIZES, OTHER
from tests.support.interruption import MARK, interrupt

TINY = ("--models", "recommender", "--workers", "2", "--steps", "1", "--batch", "64")
REAL = [name for name in models.MODELS if name != "recommender"]


def start(mark: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "p4reduce", "bench", "gradients", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, MARK: mark, **environment},
    )  # fmt: skip


def gradients(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run it to its end; gives what it wrote."""
    file = folder / "gradients.json"
    process = start("", *arguments, "--json", str(file), TMPDIR=str(folder))
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    assert not list(folder.glob("p4reduce-*")), "temporary files are left"
    made: dict[str, Any] = json.loads(file.read_text())
    assert made["version"] == 1
    return made


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
    """What --replay measures of each parameter, in this process."""
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
    if reason := models.missing(model):
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


@pytest.mark.slow
def test_nothing_is_left_when_it_is_interrupted(tmp_path: Path) -> None:
    mark = str(uuid.uuid4())
    process = start(mark, *TINY, "--sparsify", "none", "--systems", "p4reduce", "--repeat", "100000",
                    TMPDIR=str(tmp_path))  # fmt: skip
    assert "nothing is left running" in interrupt(process, mark, signal.SIGINT)
    assert not list(tmp_path.glob("p4reduce-*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--models", "alexnet"), "accepted are resnet18, resnet50, vgg11"),
        (("--size", "huge"), "accepted are tiny, base"),
        (("--target", "bmv2"), "accepted are native, sim"),
        (("--sparsify", "randomk"), "accepted are none, element, block"),
        (("--systems", "nccl"), "accepted are p4reduce, gloo"),
        (("--record-at", "0"), "accepted are steps from 1 to 10"),
        (("--steps", "4", "--record-at", "5"), "accepted are steps from 1 to 4"),
        (("--ratio", "0"), "must be above 0 and up to 1"),
        (("--link", "fast"), "accepted are rates"),
        (("--replay", "/nowhere"), "is not a folder"),
        (("--keep", "/proc"), "must be an empty folder, or not exist yet"),
        (("--replay", "/proc", "--keep", "out"), "replayed recordings are not copied"),
    ],
)
def test_wrong_options_say_what_is_accepted(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    result = CliRunner().invoke(bench, ["gradients", *arguments])
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())


def test_an_empty_folder_has_nothing_to_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    result = CliRunner().invoke(bench, ["gradients", "--replay", str(tmp_path)])
    assert result.exit_code == 1
    assert "holds no recordings" in " ".join(result.output.split())


def test_what_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(packages, "find_spec", lambda _: None)
    result = CliRunner().invoke(bench, ["gradients", "--models", "recommender,resnet18"])
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert (
        "--models resnet18: the package torchvision is not installed: pip install 'p4reduce-bench[gradients]'" in said
    )
