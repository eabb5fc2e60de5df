# SPDX-License-Identifier: Apache-2.0
"""What runs programs under torchrun, on a switch of their own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import over_udp
from tests.e2e.stack import Stack

pytest.importorskip("torch", reason="needs torch")

RANKS = 2
PROGRAMS = Path(__file__).parent
sys.path.append(str(PROGRAMS))  # as when they are run


@pytest.fixture(scope="session", params=[pytest.param("sim", marks=pytest.mark.slow), "native"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with over_udp(target=request.param) as stack:
        yield stack


@pytest.fixture(scope="session")
def native_stack() -> Iterator[Stack]:
    with over_udp(target="native") as stack:
        yield stack


def free_port() -> int:
    """One that the kernel gives to nobody else for now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def torchrun(
    program: str, *arguments: str, controller: str, environment: Mapping[str, str] | None = None, code: int = 0
) -> list[Any]:
    """Runs a program of this folder on two ranks, and returns the JSON values that they printed, a line each.

    code: with which torchrun must end.
    """
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--standalone",
         str(PROGRAMS / program), *arguments],
        env={**os.environ, "P4REDUCE_CONTROLLER": controller, "OMP_NUM_THREADS": "1", **(environment or {})},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert (done.returncode != 0) == bool(code), f"{done.stdout[-3000:]}\n{done.stderr[:6000]}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
