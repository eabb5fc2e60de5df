# SPDX-License-Identifier: Apache-2.0
"""Includes and calls of the C code make no circle. NAME.c and NAME.h are one: what either needs, both need."""

from __future__ import annotations

import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.c_builds import run, tool
from tests.support.c_headers import HOST, NATIVE, SIMULATOR


def unit(path: Path) -> Path:
    return path.with_suffix("")


def included(path: Path, folders: list[Path]) -> set[Path]:
    """Return the files of ours that a file includes, found as a compiler finds them."""
    names = re.findall(r'^#include "(.+)"', path.read_text(), re.M)
    found = {name: [folder / name for folder in (path.parent, *folders) if (folder / name).is_file()] for name in names}
    assert all(found.values()), f"{path} includes what is not there: {found}"
    return {candidates[0].resolve() for candidates in found.values()}


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
        pytest.param(SIMULATOR, [SIMULATOR, HOST, HOST / "include", NATIVE], id="simulator"),
    ],
)
def test_no_circles(root: Path, folders: list[Path]) -> None:
    units = graph(root, folders)
    assert len(units) > 4
    check_order(units)


def check_order(needs: Mapping[Path, set[Path]]) -> None:
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(str(one) for one in error.args[1]))


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
    "engine": {"link", "protocol", "kernels", "base", "wire"},
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


def symbols(path: Path) -> list[tuple[str, str]]:
    """Return the names in an object file, and their types: U for undefined, another capital letter for defined."""
    lines = run(tool("nm"), "-P", "-g", path).splitlines()
    return [(name, kind) for name, kind, *_ in map(str.split, lines)]


def calls(sources: list[Path], objects: Path) -> dict[Path, set[Path]]:
    """Compile C files, and return the other files that each refers to, by calls or tables of functions."""
    folders = {folder for source in sources for folder in (source.parents[1], source.parents[1] / "include")}
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O0", "-w", *(f"-I{folder}" for folder in sorted(folders))]
    names: dict[Path, list[tuple[str, str]]] = {}
    for source in sources:
        run(tool("gcc"), "-c", *flags, source, "-o", objects / "one.o")
        names[unit(source)] = symbols(objects / "one.o")
    where = {name: one for one, found in names.items() for name, kind in found if kind != "U"}
    return {
        one: {where[name] for name, kind in found if kind == "U" and name in where} - {one}
        for one, found in names.items()
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_circles_of_calls(tmp_path: Path) -> None:
    """Neither folders nor the files of one folder call each other in circles.

    Calls through a table of functions do not count: they depend on the code that fills it in.
    """
    sources = sorted(path for path in HOST.glob("*/*.c") if path.parent.name in FOLDERS)
    needs = {
        one.relative_to(HOST): {other.relative_to(HOST) for other in others}
        for one, others in calls(sources, tmp_path).items()
    }
    assert sum(map(len, needs.values())) > len(sources)
    check_order(needs)
    folders: dict[Path, set[Path]] = {}
    for one, others in needs.items():
        folders.setdefault(one.parent, set()).update({other.parent for other in others} - {one.parent})
    check_order(folders)


def test_a_circle_of_calls_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "a.c").write_text("void b(void); void a(void) { b(); }\n")
    (folder / "b.c").write_text("void a(void); void b(void) { a(); }\n")
    needs = calls([folder / "a.c", folder / "b.c"], tmp_path)
    assert needs == {folder / "a": {folder / "b"}, folder / "b": {folder / "a"}}
    with pytest.raises(pytest.fail.Exception):
        check_order(needs)


def test_a_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text('#include "b.h"\n')
    (tmp_path / "b.h").write_text("")
    (tmp_path / "b.c").write_text('#include "a.h"\n')
    with pytest.raises(CycleError):
        TopologicalSorter(graph(tmp_path, [])).prepare()
