# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import p4reduce
from p4reduce.backends import check_threads
from p4reduce.fastpath.library import LibraryError, library
from tests.support.c_library import needs_c_library


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in ("P4REDUCE_BACKEND", "P4REDUCE_SIMD"):
        monkeypatch.delenv(variable, raising=False)
    yield
    library.cache_clear()


@pytest.fixture
def broken_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "libp4reduce.so"
    path.write_bytes(b"no library")
    monkeypatch.setenv("P4REDUCE_LIBRARY", str(path))
    library.cache_clear()
    return path


def test_python_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_BACKEND", "python")
    assert str(p4reduce.backend()) == "python: P4REDUCE_BACKEND says so"


def test_c_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_c_library()
    backend = p4reduce.backend()
    assert backend.name == "c"
    assert str(backend) == f"c ({backend.simd}): the C library is installed"
    monkeypatch.setenv("P4REDUCE_BACKEND", "c")
    assert p4reduce.backend().why == "P4REDUCE_BACKEND says so"
    monkeypatch.setenv("P4REDUCE_SIMD", "portable")
    assert p4reduce.backend().simd == "portable"
    monkeypatch.setenv("P4REDUCE_SIMD", "mmx")
    with pytest.raises(ValueError, match=r"P4REDUCE_SIMD='mmx': this processor has .*portable"):
        p4reduce.backend()


def test_without_the_library_python_is_used_and_says_why(broken_library: Path) -> None:
    with pytest.warns(UserWarning, match="cannot be loaded.*in Python, which is slower"):
        backend = p4reduce.backend()
    assert backend.name == "python"
    assert backend.why.startswith(f"the C library {broken_library} cannot be loaded: ")


def test_forcing_c_gives_the_first_error(broken_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_BACKEND", "c")
    with pytest.raises(LibraryError, match=f"the C library {broken_library} cannot be loaded: ") as raised:
        p4reduce.backend()
    assert isinstance(raised.value.__cause__, OSError)


def test_unknown_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_BACKEND", "rust")
    with pytest.raises(ValueError, match="P4REDUCE_BACKEND='rust': accepted are c, python"):
        p4reduce.backend()


def test_threads_are_for_c_and_udp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_BACKEND", "python")
    check_threads(1, "udp")
    with pytest.raises(ValueError, match=r"threads=2 with the transport 'udp' and the backend python: .*accepted is 1"):
        check_threads(2, "udp")
    monkeypatch.delenv("P4REDUCE_BACKEND")
    with pytest.raises(ValueError, match="threads=2 with the transport 'raw'"):
        check_threads(2, "raw")


def flags(library: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `python -m p4reduce.fastpath`, with P4REDUCE_LIBRARY set to this library, and return its result."""
    environment = {name: value for name, value in os.environ.items() if name != "P4REDUCE_LIBRARY"}
    if library is not None:
        environment["P4REDUCE_LIBRARY"] = str(library)
    command = [sys.executable, "-m", "p4reduce.fastpath"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_what_a_compiler_needs_is_there_for_another_build_too(tmp_path: Path) -> None:
    installed = flags()
    if installed.returncode:
        pytest.skip(f"needs the C library: {installed.stderr}")
    include, *_ = installed.stdout.split()
    assert Path(include.removeprefix("-I"), "p4reduce.h").is_file()
    for name, linked in {"libp4reduce.so": "-lp4reduce", "libother.so": "-l:libother.so"}.items():
        (tmp_path / name).touch()
        assert flags(tmp_path / name).stdout.split() == [include, f"-L{tmp_path}", f"-Wl,-rpath,{tmp_path}", linked]
    missing = flags(tmp_path / "none.so")
    assert missing.returncode == 1
    assert (
        missing.stderr == f"python -m p4reduce.fastpath: P4REDUCE_LIBRARY={tmp_path}/none.so: there is no such file\n"
    )
