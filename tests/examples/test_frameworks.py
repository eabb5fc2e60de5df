# SPDX-License-Identifier: Apache-2.0
"""Frameworks on two ranks, beside a model that one process trains; skipped where the framework's package is missing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import Stack

from .conftest import EXAMPLES, expected, losses_of, rounds_of, run, torchrun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RAY_CLUSTER = str(Path(__file__).with_name("ray_cluster.py"))


def skip_without(package: str) -> None:
    """Looks, and does not import: some take many seconds."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")


@pytest.mark.parametrize(
    ("package", "example"),
    [
        ("lightning", "train_lightning.py"),
        ("lightning", "train_lightning.py backend"),
        ("accelerate", "train_accelerate.py"),
        ("accelerate", "train_accelerate.py backend"),
        ("transformers", "train_trainer.py"),
        ("transformers", "train_trainer.py backend"),
        ("deepspeed", "train_deepspeed.py 1"),
        ("deepspeed", "train_deepspeed.py 2"),
    ],
)
def test_losses_are_those_of_one_process(stack: Stack, package: str, example: str) -> None:
    skip_without(package)
    program, *arguments = example.split()
    with rounds_of(stack, 10):
        said = run(stack, torchrun(str(EXAMPLES / program), *arguments), limit=500)
    assert losses_of(said) == pytest.approx(expected(2), rel=1e-5)


@pytest.mark.parametrize("arguments", [[], ["backend"]])
def test_ray_on_several_nodes(stack: Stack, tmp_path: Path, arguments: list[str]) -> None:
    skip_without("ray")
    command = [sys.executable, RAY_CLUSTER, "2", str(EXAMPLES / "train_ray.py"), *arguments]
    with rounds_of(stack, 10):
        said = run(stack, command, more={"STORAGE": str(tmp_path)}, limit=500)
    assert losses_of(said) == pytest.approx(expected(2), rel=1e-5)
