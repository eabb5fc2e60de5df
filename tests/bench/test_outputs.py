# SPDX-License-Identifier: Apache-2.0
"""Files that cannot be written are told of before anything is measured, and those that can are not made yet."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from p4reduce.errors import P4ReduceError
from p4reduce_bench.cli import bench
from p4reduce_bench.outputs import check


def test_files_in_folders_that_are_not_there_yet(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("{}")
    check(json_file=tmp_path / "new" / "rows.json", plot=tmp_path / "plots" / "a.SVG")
    check(json_file=kept, plot=tmp_path / "plot")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept.json", "new", "plots"]
    assert kept.read_text() == "{}"


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(P4ReduceError, match=f"--json {tmp_path}: nothing can be written there: Is a directory"):
        check(json_file=tmp_path)
    with pytest.raises(P4ReduceError, match=r"--plot /dev/null/x\.png: nothing can be written there"):
        check(plot=Path("/dev/null/x.png"))
    with pytest.raises(P4ReduceError, match=r"--plot .*x\.foo: accepted are files that end in .*\.png"):
        check(plot=tmp_path / "x.foo")


@pytest.mark.parametrize("command", ["allreduce", "train", "gradients"])
@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_commands_say_so_first(command: str, option: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(bench, [command, option, str(tmp_path), "--timeout", "1"])
    assert result.exit_code == 1
    assert f"{option} {tmp_path}: nothing can be written there" in result.output.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--systems", "sparcml", "--workers", "3"], "sparcml with 3 workers: accepted are powers of two"),
        (["--systems", "gloo,zen", "--dtype", "bfloat16"], "zen of bfloat16: accepted are float32"),
        (["--systems", "switchml", "--dtype", "float16"], "switchml of float16: accepted are float32, int32"),
        (["--systems", "gloo", "--input", "coo"], "--input coo needs p4reduce"),
        (["--systems", "gloo,gloo"], "--systems gloo,gloo: accepted is each once"),
        (["--dtype", "int32", "--wire", "int16"], "--wire int16 with --dtype int32"),
    ],
)
def test_what_no_system_can_do_is_refused_first(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(bench, ["allreduce", *arguments])
    assert result.exit_code == 1
    assert message in result.output.replace("\n", "")
