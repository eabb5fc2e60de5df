# SPDX-License-Identifier: Apache-2.0
"""The native switch's fuzzing targets, with sanitizers, on their seeds and on what a few changes make of those."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = ROOT / "targets" / "csrc" / "fuzz" / "seeds.py"
VARIANTS = 20  # of each seed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cmake = shutil.which("cmake")
    if cmake is None or shutil.which("gcc") is None:
        pytest.skip("needs cmake and gcc")
    folder = tmp_path_factory.mktemp("fuzzers")
    options = ("-DCMAKE_C_COMPILER=gcc", "-DP4REDUCE_SANITIZE=address,undefined", "-DP4REDUCE_FUZZ=ON")
    run(cmake, "-S", str(ROOT), "-B", str(folder), "-DP4REDUCE_WERROR=ON", *options)
    run(cmake, "--build", str(folder), "--target", "native_fuzz_frames", "native_fuzz_datagrams")
    return folder / "targets" / "csrc"


def run(*command: str) -> None:
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # a fuzzer keeps its switch to the end
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=250, env=environment, check=False
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout[-4000:]}"


@pytest.mark.parametrize("subject", ["frames", "datagrams"])
def test_seeds_and_their_variants(built: Path, subject: str, tmp_path: Path) -> None:
    run(sys.executable, str(SEEDS), str(tmp_path))
    seeds = sorted((tmp_path / subject).iterdir())
    assert seeds
    random = Random(1)
    for seed in seeds:
        for variant in range(VARIANTS):
            data = bytearray(seed.read_bytes())
            for _ in range(random.randrange(1, 4)):
                data[random.randrange(len(data))] = random.choice([0, 1, 0xFF, random.randrange(256)])
            seed.with_name(f"{seed.name}-{variant}").write_bytes(data)
    run(str(built / f"native_fuzz_{subject}"), *map(str, sorted((tmp_path / subject).iterdir())))
