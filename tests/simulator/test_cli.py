# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce simulate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from p4reduce.commands.cli import app


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["simulate", *arguments])
    return done.exit_code, done.output


def test_a_table_json_and_a_plot(tmp_path: Path) -> None:
    out, picture = tmp_path / "out.json", tmp_path / "out.svg"
    code, said = run("--topology", "clos", "--ranks", "8", "--numel", "64KiB", "--density", "1,0.1", "--links",
                     "--json", str(out), "--plot", str(picture))  # fmt: skip
    assert code == 0, said
    assert said.count("exact") == 2
    assert "busiest links" in said
    found = json.loads(out.read_text())
    assert [row["workload"]["density"] for row in found["rows"]] == [1, 0.1]
    assert found["rows"][0]["result"]["exact"] is True
    assert found["rows"][0]["result"]["percentiles"]["1.0"] > 0
    assert "utilisation" in picture.read_text() or picture.stat().st_size > 1000


def test_systems_are_compared(tmp_path: Path) -> None:
    out, picture = tmp_path / "out.json", tmp_path / "out.svg"
    code, said = run("--systems", "p4reduce,ring,omnireduce", "--ranks", "4", "--numel", "64KiB", "--density", "1,0.1",
                     "--json", str(out), "--plot", str(picture))  # fmt: skip
    assert code == 0, said
    rows = json.loads(out.read_text())["rows"]
    assert [[run["system"] for run in row["runs"]] for row in rows] == [["p4reduce", "ring", "omnireduce"]] * 2
    assert all(run["time"] > 0 for row in rows for run in row["runs"])
    assert picture.stat().st_size > 1000
    assert run("--systems", "ring", "--ranks", "64", "--numel", "1000")[0] == 0  # more than a switch adds up for


def test_a_topology_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rooms.yaml"
    file.write_text(
        "name: two-rooms\nswitches: [s1, s2]\nhosts: {h1: s1, h2: s1, h3: s2, h4: s2}\nlinks: [[s1, s2]]\n"
        'edge: "rate=1gbit"\ncore: "rate=1gbit,delay=1ms"\nroots: [s2]\n'
    )
    code, said = run("--topology", str(file), "--numel", "16KiB", "--density", "1")
    assert code == 0, said
    assert "two-rooms: 4 ranks, 2 switches" in said


def test_tensors_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tensors.npy"
    np.save(file, np.arange(3 * 1000, dtype=np.float32).reshape(3, 1000))
    code, said = run("--ranks", "3", "--file", str(file))
    assert code == 0, said
    assert " 1000 " in said
    np.save(file, np.arange(3, dtype=np.float32))
    assert "has shape (3,): accepted is (ranks, elements)" in " ".join(run("--file", str(file))[1].split())
    assert "exact" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology", "ring"], "--topology ring: accepted are star, tree, clos"),
        (["--ranks", "33"], "33 ranks and switches are below switch: a switch adds up at most 32"),
        (["--link", "speed=1"], "--link speed=1: accepted are some of rate="),
        (["--link", "delay=1h"], "--link: delay 1h: accepted are times such as"),
        (["--density", "2"], "--density 2: accepted are shares of 0 to 1"),
        (["--dtype", "float64"], "--dtype float64: accepted are float32, int32"),
        (["--late", "soon"], "--late soon: accepted are times such as"),
        (["--topology", "nothing.yaml"], "nothing.yaml: it cannot be read"),
        (
            ["--systems", "p4reduce,nccl"],
            "--systems p4reduce,nccl: accepted are p4reduce, switchml, p4reduce-elements",
        ),
        (["--systems", "ring", "--late", "1s"], "systems are compared by one allreduce"),
        (["--systems", "ring", "--pcap", "x.pcap"], "--pcap x.pcap: accepted with --systems p4reduce alone"),
        (["--link", "loss=1", "--until", "1s"], "rank 0: the operation has not ended"),
        (["--until", "1us"], "the limits are --until 1e-06s and --wall 86400"),
        (["--leaves", "3"], "--leaves 3: accepted with --topology tree, clos"),
        (["--topology", "tree", "--spines", "3"], "--spines 3: accepted with --topology clos"),
        (["--core", "rate=1gbit"], "--core rate=1gbit: accepted with --topology tree, clos, FILE"),
        (["--pattern", "spots"], "--pattern spots: accepted are blocks, elements, rows, runs, clustered"),
        (["--operations", "70000"], "--operations 70000: accepted are 1 to 65536"),
        (["--warm-up", "70000"], "--warm-up 70000: accepted are 0 to 65536"),
        (["--late", "4000s"], "--late 4000.0s: accepted are 0 to 3600s"),
        (["--systems", "sparcml", "--ranks", "3"], "3 ranks: accepted are powers of two for sparcml"),
        (["--pcap", "/dev/null/x"], "--pcap /dev/null/x: nothing can be written there"),
    ],
)
def test_errors(arguments: list[str], message: str) -> None:
    code, said = run(*arguments, "--numel", "1000")
    assert code == 1
    assert message in said


def test_real_tensors_are_rounded_as_the_protocol_specifies(tmp_path: Path) -> None:
    file, out = tmp_path / "tensors.npy", tmp_path / "out.json"
    values = np.random.default_rng(1).normal(size=(4, 5000)).astype(np.float32)
    values[2, 3] = np.nan
    np.save(file, values)
    code, said = run("--ranks", "4", "--file", str(file), "--json", str(out))
    assert code == 0, said
    assert "rounded" in said
    result = json.loads(out.read_text())["rows"][0]["result"]
    assert (result["exact"], result["right"]) == (False, True)
    assert run("--ranks", "4", "--file", str(file), "--systems", "p4reduce,ring")[0] == 0


@pytest.mark.parametrize("content", [b"x", b"", "text", np.ones(3)[:, None] * 1j])
def test_files_that_have_no_numbers(content: Any, tmp_path: Path) -> None:
    file = tmp_path / "tensors.npy"
    file.write_bytes(content) if isinstance(content, bytes) else np.save(file, content)
    code, said = run("--file", str(file))
    assert code == 1
    assert f"--file {file}: accepted is a .npy file with numbers" in said


def test_more_ranks_than_the_workers_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rooms.json"
    file.write_text('{"switches": ["s"], "hosts": {"a": "s", "b": "s"}, "hierarchical": true}')
    assert run("--topology", str(file), "--numel", "1000")[0] == 0
    assert f"--ranks 3: accepted are 1 to 2, the workers of {file}" in run("--topology", str(file), "--ranks", "3")[1]
    file.write_text('{"switches": ["s"]}')
    assert "the key 'hosts' is missing" in run("--topology", str(file))[1]
    file.write_text('{"switches": ["s"], "hosts": {"a": "s"}, "workers": ["b"]}')
    assert "the worker 'b': accepted are the hosts a" in run("--topology", str(file))[1]


def test_the_busiest_links_of_each_system() -> None:
    code, said = run("--systems", "p4reduce,ring", "--ranks", "2", "--numel", "1000", "--density", "1", "--links")
    assert code == 0, said
    assert "busiest links: p4reduce, density 1" in said
    assert "busiest links: ring, density 1" in said
