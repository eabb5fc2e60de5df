# SPDX-License-Identifier: Apache-2.0
"""The native switch's fuzzing targets, with sanitizers, on their seeds and on what a few changes make of those."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

from tests.support import c_builds
from tests.support.c_builds import ROOT, run

SEEDS = ROOT / "targets" / "csrc" / "fuzz" / "seeds.py"
VARIANTS = 20  # of each seed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built() -> Path:
    return c_builds.sanitized("gcc", "native_fuzz_frames", "native_fuzz_datagrams") / "targets" / "csrc"


@pytest.mark.parametrize("subject", ["frames", "datagrams"])
def test_seeds_and_their_variants(built: Path, subject: str, tmp_path: Path) -> None:
    run(sys.executable, SEEDS, tmp_path)
    seeds = sorted((tmp_path / subject).iterdir())
    assert seeds
    random = Random(1)
    for seed in seeds:
        for variant in range(VARIANTS):
            data = bytearray(seed.read_bytes())
            for _ in range(random.randrange(1, 4)):
                data[random.randrange(len(data))] = random.choice([0, 1, 0xFF, random.randrange(256)])
            seed.with_name(f"{seed.name}-{variant}").write_bytes(data)
    # A fuzzer keeps its switch to the end, which is no leak.
    run(built / f"native_fuzz_{subject}", *sorted((tmp_path / subject).iterdir()), ASAN_OPTIONS="detect_leaks=0")
