# SPDX-License-Identifier: Apache-2.0
"""Runs modules of this folder under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

RANKS = 2
ROOT = Path(__file__).parents[2]


def torchrun(
    program: str, *arguments: str, controller: str, environment: Mapping[str, str] | None = None, code: int = 0
) -> list[Any]:
    """Run a module of this folder on two ranks, and return the JSON values that they printed, a line each.

    code: with which torchrun must end.
    """
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--standalone",
         "--module", f"tests.distributed.{program}", *arguments],
        cwd=ROOT,
        env={**os.environ, "P4REDUCE_CONTROLLER": controller, "OMP_NUM_THREADS": "1", **(environment or {})},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert (done.returncode != 0) == bool(code), f"{done.stdout[-3000:]}\n{done.stderr[:6000]}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def passed(events: list[Any]) -> list[list[str]]:
    """Return the names of the checks that passed, for each rank."""
    return [[event["passed"] for event in events if event["rank"] == rank] for rank in range(RANKS)]


def names(checks: Iterable[Callable[..., None]]) -> list[str]:
    return [function.__name__ for function in checks]
