# SPDX-License-Identifier: Apache-2.0
"""Includes of the C code make no circle. NAME.c and NAME.h are one: what either needs, both need."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from .c_headers import HOST, NATIVE


def unit(path: Path) -> Path:
    return path.with_suffix("")


def included(path: Path, folders: list[Path]) -> set[Path]:
    """The files of ours that one includes, found as a compiler does."""
    names = re.findall(r'^#include "(.+)"', path.read_text(), re.M)
    found = {name: [place / name for place in (path.parent, *folders) if (place / name).is_file()] for name in names}
    assert all(found.values()), f"{path} includes what is not there: {found}"
    return {places[0].resolve() for places in found.values()}


def graph(root: Path, folders: list[Path]) -> dict[Path, set[Path]]:
    units: dict[Path, set[Path]] = {}
    for path in sorted([*root.glob("*.[ch]"), *root.glob("*/*.[ch]")]):
        units.setdefault(unit(path), set()).update(map(unit, included(path, folders)))
    return {one: others - {one} for one, others in units.items()}


@pytest.mark.parametrize(
    ("root", "folders"),
    [
        pytest.param(HOST, [HOST, HOST / "include"], id="hostlib"),
        pytest.param(NATIVE, [NATIVE, HOST], id="targets"),
    ],
)
def test_no_circles(root: Path, folders: list[Path]) -> None:
    units = graph(root, folders)
    assert len(units) > 15
    try:
        TopologicalSorter(units).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(str(one.relative_to(root.parents[1])) for one in error.args[1]))


def test_the_switch_takes_only_the_wire_from_the_host_library() -> None:
    others = {
        other for needs in graph(NATIVE, [NATIVE, HOST]).values() for other in needs if NATIVE not in other.parents
    }
    assert {other.parent for other in others} == {HOST / "wire"}


FOLDERS = {
    "wire": set(),
    "base": {"wire"},
    "kernels": {"base", "wire"},
    "protocol": {"kernels", "base", "wire"},
    "link": {"protocol", "kernels", "base", "wire"},
    "shm": {"base", "wire"},
    "engine": {"intranode", "link", "protocol", "kernels", "shm", "base", "wire"},
    "intranode": {"engine", "link", "protocol", "kernels", "shm", "base", "wire"},
}
"""The folders of the host library's C code, and what each may include besides itself and the public headers."""


def test_folders_include_what_they_may() -> None:
    folders = {path.parent.name for path in HOST.glob("*/*.c")} - {"examples", "fuzz", "tests"}
    assert folders < set(FOLDERS)
    for one, needed in graph(HOST, [HOST, HOST / "include"]).items():
        folder = one.parent.name
        others = {other.parent.name for other in needed} - {folder, "include"}
        assert folder not in FOLDERS or others <= FOLDERS[folder], f"{one} includes files of {others - FOLDERS[folder]}"


def test_a_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text('#include "b.h"\n')
    (tmp_path / "b.h").write_text("")
    (tmp_path / "b.c").write_text('#include "a.h"\n')
    with pytest.raises(CycleError):
        TopologicalSorter(graph(tmp_path, [])).prepare()
