# SPDX-License-Identifier: Apache-2.0
"""Frameworks on two ranks, beside a model that one process trains; skipped where the framework's package is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.runs import (
    EXAMPLES,
    all_has_crossed,
    environment,
    expected,
    losses_of,
    rounds,
    rounds_of,
    run,
    torchrun,
)
from tests.support.cluster.stack import Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RAY_CLUSTER = str(Path(__file__).with_name("ray_cluster.py"))
LIMIT_S = 500


def skip_without(package: str) -> None:
    """Skip the test if the package is not installed, without importing it: some take many seconds."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")


def trained_through_the_switch(said: str) -> None:
    assert losses_of(said) == pytest.approx(expected(2), rel=1e-5)
    all_has_crossed(said, 2)


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
        ("deepspeed", "train_deepspeed.py 3"),
    ],
)
def test_losses_are_those_of_one_process(stack: Stack, package: str, example: str) -> None:
    skip_without(package)
    program, *arguments = example.split()
    with rounds_of(stack, rounds(2)):
        said = run(stack, torchrun(str(EXAMPLES / program), *arguments), limit=LIMIT_S)
    trained_through_the_switch(said)


@pytest.mark.parametrize("arguments", [[], ["backend"]])
def test_lightning_of_tasks_that_srun_starts(stack: Stack, tmp_path: Path, arguments: list[str]) -> None:
    """There is no torchrun: Lightning alone knows the ranks, from these variables of Slurm."""
    skip_without("lightning")
    number = str(10_000 + os.getpid() % 10_000)
    slurm = {"JOB_ID": number, "JOB_NAME": "train", "NODELIST": "localhost", "NODEID": "0"}
    slurm |= {"NTASKS": "2", "NTASKS_PER_NODE": "2"}
    command, tasks = [sys.executable, str(EXAMPLES / "train_lightning.py"), *arguments], []
    try:
        with rounds_of(stack, rounds(2)):
            for rank in ("0", "1"):
                task = {f"SLURM_{name}": value for name, value in {**slurm, "PROCID": rank, "LOCALID": rank}.items()}
                with (tmp_path / rank).open("w") as file:
                    whole = {**environment(stack), **task}
                    tasks.append(subprocess.Popen(command, env=whole, stdout=file, stderr=subprocess.STDOUT))
            ends = [task.wait(LIMIT_S) for task in tasks]
            said = "".join((tmp_path / rank).read_text() for rank in ("0", "1"))
            assert ends == [0, 0], said
    finally:
        for task in tasks:
            task.kill()
            task.wait()
    trained_through_the_switch(said)


@pytest.mark.parametrize(("arguments", "submitted"), [([], False), (["backend"], True)])
def test_ray_on_several_nodes(stack: Stack, tmp_path: Path, arguments: list[str], submitted: bool) -> None:
    """submitted: the driver is told what `ray job submit --runtime-env-json` tells it."""
    skip_without("ray")
    command = [sys.executable, RAY_CLUSTER, "2", str(EXAMPLES / "train_ray.py"), *arguments]
    job = {"runtime_env": {"env_vars": {"P4REDUCE_CONTROLLER": stack.controller}}, "metadata": {}}
    more = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)} if submitted else {}
    with rounds_of(stack, rounds(2)):
        said = run(stack, command, more={"STORAGE": str(tmp_path), **more}, limit=LIMIT_S)
    trained_through_the_switch(said)
