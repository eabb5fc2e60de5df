# SPDX-License-Identifier: Apache-2.0
"""The Slurm script, with an srun and a scontrol that do on this machine what Slurm's do on many."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster.stack import over_udp

from .commands import DEPLOY

SCRIPT = DEPLOY / "slurm" / "train.sbatch"
SCONTROL = """\
#!/bin/sh
[ "$*" = "show hostnames node[1-2]" ] || { echo "scontrol: $*" >&2; exit 1; }
printf 'localhost\\nnode2\\n'
"""
SRUN = """\
#!/usr/bin/env bash
# srun OPTION... PROGRAM ARGUMENT...: as many processes as there are tasks; where one fails, the others are ended.
set -u
while [[ ${1-} == --* ]]; do echo "srun option $1" >&2; shift; done
pids=()
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=0 "$@" & pids+=($!)
done
status=0
for _ in "${pids[@]}"; do
    wait -n || { status=$?; kill "${pids[@]}" 2>/dev/null; }
done
exit "$status"
"""


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """Return the environment in which Slurm runs the script, with fake tools."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SLURM_JOB_ID": str(100_000 + os.getpid() % 10_000),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NTASKS": "2",
        "P4REDUCE_CONTROLLER": "127.0.0.1:7700",
    }


def run(environment: dict[str, str], *program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *program], env=environment, capture_output=True, text=True, timeout=200
    )  # fmt: skip


def test_each_rank_knows_who_it_is(slurm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "p4reduce").mkdir()
    (tmp_path / "p4reduce" / "token").write_text("secret\n")
    said = "$RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $MASTER_PORT $JOB $P4REDUCE_TOKEN $1"
    done = run(slurm, "sh", "-c", f'echo "{said}"', "program", "an argument")
    assert done.returncode == 0, done.stderr
    number = int(slurm["SLURM_JOB_ID"])
    rest = f"2 0 localhost {20_000 + number % 10_000} slurm-{number}-0 secret an argument"
    assert sorted(done.stdout.splitlines()) == [f"0 {rest}", f"1 {rest}"]
    assert "srun option --kill-on-bad-exit=1" in done.stderr
    again = run({**slurm, "SLURM_RESTART_COUNT": "1"}, "sh", "-c", 'echo "$JOB"')
    assert set(again.stdout.split()) == {f"slurm-{number}-1"}


def test_a_token_of_the_environment_is_used_and_none_need_be(slurm: dict[str, str]) -> None:
    assert run({**slurm, "P4REDUCE_TOKEN": "mine"}, "sh", "-c", 'echo "$P4REDUCE_TOKEN"').stdout == "mine\nmine\n"
    assert (
        run({**slurm, "P4REDUCE_TOKEN_FILE": ""}, "sh", "-c", 'echo "${P4REDUCE_TOKEN-none}"').stdout == "none\nnone\n"
    )
    missing = run(slurm, "true")
    assert missing.returncode != 0
    assert "p4reduce/token" in missing.stderr


def test_what_is_missing_is_named(slurm: dict[str, str]) -> None:
    del slurm["P4REDUCE_CONTROLLER"]
    done = run(slurm, "true")
    assert done.returncode != 0
    assert "P4REDUCE_CONTROLLER: HOST:PORT of the controller" in done.stderr
    done = run({**slurm, "P4REDUCE_CONTROLLER": "x:1"})
    assert done.returncode == 2
    assert "usage: sbatch train.sbatch PROGRAM" in done.stderr


def test_a_rank_that_fails_ends_it(slurm: dict[str, str]) -> None:
    done = run({**slurm, "P4REDUCE_TOKEN": "x"}, "sh", "-c", "[ $RANK = 0 ] && exit 3; exec sleep 100")
    assert done.returncode != 0


def test_shellcheck_finds_nothing() -> None:
    if (shellcheck := shutil.which("shellcheck")) is None:
        pytest.skip("needs shellcheck")
    done = subprocess.run([shellcheck, SCRIPT, DEPLOY / "certificates.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_its_options_are_above_its_commands() -> None:
    """After the script's first command, sbatch reads no more options."""
    head = SCRIPT.read_text().split("set -euo pipefail")[0]
    assert len(re.findall(r"^#SBATCH --", head, re.MULTILINE)) == len(re.findall("#SBATCH", SCRIPT.read_text())) > 4


@pytest.mark.slow
def test_the_training_runs_under_it(slurm: dict[str, str]) -> None:
    with over_udp(target="native") as stack:
        environment = {**slurm, "P4REDUCE_CONTROLLER": stack.controller, "P4REDUCE_TOKEN_FILE": ""}
        environment |= {"P4REDUCE_LOCAL": "off", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "STEPS": "5"}
        done = run(environment, sys.executable, str(DEPLOY / "train.py"))
    assert done.returncode == 0, done.stderr
    losses = [float(text) for text in re.findall(r"^step \d loss ([\d.]+)$", done.stdout, re.MULTILINE)]
    assert len(losses) == 5
    assert re.search(r": [1-9]\d* packets sent$", done.stdout, re.MULTILINE), done.stdout
