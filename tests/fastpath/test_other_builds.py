# SPDX-License-Identifier: Apache-2.0
"""The C sources built in other ways: with sanitizers, for fuzzing, with another compiler, for another processor."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from p4reduce.fastpath.library import LibraryError, simd_sets
from tests.support import c_builds
from tests.support.c_builds import ROOT, run, tool

CSRC = ROOT / "hostlib" / "csrc"
KERNELS = [*sorted(CSRC.glob("kernels/kernels_*.c")), CSRC / "kernels" / "cpu.c", CSRC / "tests" / "compare_kernels.c"]


def library_sources() -> list[Path]:
    """Return all C files of the library, without those of examples, tests and fuzzing targets."""
    return sorted(path for path in CSRC.glob("*/*.c") if path.parent.name not in ("examples", "fuzz", "tests"))


pytestmark = pytest.mark.slow
VALUES_ASIDE = "not every_exponent and not every_value"  # of which other tests have every length, and fewer values


@pytest.fixture(scope="module")
def sanitized() -> Path:
    return c_builds.sanitized("gcc", "p4reduce", "fuzz_receive") / "hostlib" / "csrc"


@pytest.mark.timeout(900)
def test_the_suite_with_sanitizers(sanitized: Path) -> None:
    """Any read or write outside of a tensor or a packet ends the process.

    The suite is the quick tests of this folder and those of ranks that share memory.
    """
    preload = " ".join(run("gcc", f"-print-file-name=lib{name}.so").strip() for name in ("asan", "ubsan"))
    tests = [path for path in sorted(Path(__file__).parent.glob("test_*.py")) if path.name != Path(__file__).name]
    tests.append(ROOT / "tests" / "local")
    output = run(
        sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", "-k", VALUES_ASIDE,
        *tests,
        LD_PRELOAD=preload,
        ASAN_OPTIONS="detect_leaks=0",  # Python's own
        P4REDUCE_LIBRARY=str(sanitized / "libp4reduce.so"),
        P4REDUCE_SCHEDULES="400",
        timeout=850,
    )  # fmt: skip
    assert " passed" in output


def test_fuzzing_target(sanitized: Path) -> None:
    run(sanitized / "fuzz_receive", "--random", "10000")


def test_clang_and_libfuzzer() -> None:
    tool("clang")
    if not Path(run("clang", "-print-file-name=libclang_rt.fuzzer-x86_64.a").strip()).is_absolute():
        pytest.skip("needs libFuzzer, which comes with clang's runtime libraries")
    built = c_builds.sanitized("clang", "p4reduce", "fuzz_receive")
    run(built / "hostlib" / "csrc" / "fuzz_receive", "-runs=20000", "-seed=1", "-max_len=2048")


@pytest.fixture(scope="module")
def compare_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("kernels") / "compare"
    run(tool("cc"), "-std=c11", "-D_GNU_SOURCE", "-O2", f"-I{CSRC}", *KERNELS, "-o", program, "-lm")
    return program


@pytest.mark.parametrize("simd", ["avx512", "avx2", "portable"])
def test_kernels_agree(simd: str, compare_kernels: Path) -> None:
    try:
        here = simd_sets()
    except LibraryError as error:
        pytest.skip(str(error))
    if simd not in here:
        pytest.skip(f"this processor has no {simd}")
    assert run(compare_kernels, simd) == f"{simd}: as portable\n"


def test_neon_in_an_emulator(tmp_path: Path) -> None:
    emulator, compiler = tool("qemu-aarch64-static"), tool("aarch64-linux-gnu-gcc")
    program = tmp_path / "compare"
    options = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-ffp-contract=off", "-static", "-Wall", "-Wextra", "-Werror")
    run(compiler, *options, f"-I{CSRC}", *KERNELS, "-o", program, "-lm")
    assert run(emulator, program) == "neon: as portable\n"


def test_all_sources_for_another_processor(tmp_path: Path) -> None:
    compiler = tool("aarch64-linux-gnu-gcc")
    options = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")
    folders = (f"-I{CSRC}", f"-I{CSRC / 'include'}")
    run(compiler, *options, *folders, *library_sources(), "-o", tmp_path / "lib.so", "-lm", "-lpthread")


@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
@pytest.mark.parametrize("what", ["engine", "host", "local"])
def test_threads_with_a_sanitizer(what: str, sanitizers: str) -> None:
    """The program runs without Python, so that the sanitizer sees races between threads and leaks."""
    folder = c_builds.sanitized("gcc", f"{what}_threads", sanitizers=sanitizers) / "hostlib" / "csrc"
    for _ in range(3):
        assert run(folder / f"{what}_threads") == "well\n"


@pytest.mark.parametrize(("compiler", "standard", "suffix"), [("c++", "c++11", "cpp"), ("cc", "c99", "c")])
def test_headers_need_no_others(compiler: str, standard: str, suffix: str, tmp_path: Path) -> None:
    names = sorted(path.name for path in (CSRC / "include").iterdir())
    assert names == ["p4reduce.h", "p4reduce_indices.h", "p4reduce_local.h", "p4reduce_numbers.h", "p4reduce_worker.h"]
    source = tmp_path / f"headers.{suffix}"
    source.write_text("".join(f"#include <{name}>\n" for name in names))
    strict = (f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-pedantic")
    run(tool(compiler), *strict, f"-I{CSRC / 'include'}", "-c", source, "-o", tmp_path / "o")


def test_only_what_the_headers_declare_is_exported(sanitized: Path) -> None:
    declared: set[str] = set()
    for header in (CSRC / "include").iterdir():
        declared |= set(re.findall(r"P4REDUCE_API [^;(]*?\b(p4reduce_\w+)\(", header.read_text()))
    symbols = run(tool("nm"), "-D", "--defined-only", sanitized / "libp4reduce.so")
    exported = {line.split()[-1] for line in symbols.splitlines()}
    assert declared == {name for name in exported if not name.startswith(("_", "__"))}
