# SPDX-License-Identifier: Apache-2.0
"""Files that cannot be written are told of before anything is measured, and those that can are not made yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from p4reduce.errors import P4ReduceError
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
