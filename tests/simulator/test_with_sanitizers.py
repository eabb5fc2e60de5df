# SPDX-License-Identifier: Apache-2.0
"""The simulator, its workers and its switches with sanitizers: the quick tests of this folder again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import c_builds
from tests.support.c_builds import run

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
def test_the_suite_with_sanitizers() -> None:
    built = c_builds.sanitized("gcc", "p4reduce_simulator")
    preload = " ".join(run("gcc", f"-print-file-name=lib{name}.so").strip() for name in ("asan", "ubsan"))
    output = run(
        sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow",
        *(Path(__file__).with_name(name) for name in ("test_simulation.py", "test_peers.py")),
        LD_PRELOAD=preload,
        ASAN_OPTIONS="detect_leaks=0",  # Python's own
        P4REDUCE_LIBRARY=str(built / "hostlib" / "csrc" / "libp4reduce.so"),
        P4REDUCE_NATIVE_LIBRARY=str(built / "targets" / "csrc" / "libp4reduce_native.so"),
        P4REDUCE_SIMULATOR_LIBRARY=str(built / "simulator" / "csrc" / "libp4reduce_simulator.so"),
        timeout=850,
    )  # fmt: skip
    assert " passed" in output
