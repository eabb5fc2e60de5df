# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/first-training.md, as they stand there, in a network namespace that has the page's addresses."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from p4reduce_targets.launch import bound_to_us
from tests.support.own_network import Namespace, ip

from .commands import DEPLOY, parsed, words_of

ROOT = DEPLOY.parent
PAGE = ROOT / "docs" / "first-training.md"
START_UP_S = 90.0


def blocks() -> list[str]:
    """What is to be typed, but for the installation."""
    return re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1:]  # the first installs


def test_the_commands_are_accepted() -> None:
    """Also where there is no root to run them."""
    lines = [line for block in blocks() for line in block.replace("\\\n", " ").splitlines()]
    calls = [words_of(line)[1:] for line in lines if line.startswith("p4reduce ")]
    assert [words[0] for words in calls] == ["switch", "controller", "status", "doctor"]
    for words in calls:
        parsed(words)


class Shells:
    """Of the page's reader, in a folder that is like the repository's."""

    def __init__(self, folder: Path, namespace: Namespace) -> None:
        self.folder = folder
        self.namespace = namespace
        self.processes: list[subprocess.Popen[str]] = []
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {"PATH": path, "HOME": str(folder), "P4REDUCE_LOCAL": "off", "OMP_NUM_THREADS": "1"}
        self.environment |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONUNBUFFERED": "1"}

    def begin(self, block: str) -> subprocess.Popen[str]:
        number = len(self.processes)
        with self.namespace.entered(), (self.folder / f"{number}.err").open("w") as errors:
            self.processes.append(
                subprocess.Popen(
                    bound_to_us(["sh", "-ec", block]),
                    cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=errors, text=True,
                    start_new_session=True,
                )
            )  # fmt: skip
        return self.processes[-1]

    def ready(self, block: str) -> None:
        """Begins a service."""
        process = self.begin(f"exec {block}")
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), line + self.errors()

    def done(self, *running: subprocess.Popen[str]) -> list[str]:
        """What each has printed."""
        end = time.monotonic() + START_UP_S
        printed = [process.communicate(timeout=end - time.monotonic())[0] for process in running]
        assert [process.returncode for process in running] == [0] * len(running), "\n".join(printed) + self.errors()
        return printed

    def errors(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.err")))

    def close(self) -> None:
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, 15)
            process.wait(30)


@pytest.fixture
def shells(tmp_path: Path) -> Iterator[Shells]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    with closing(Namespace()) as namespace:
        with namespace.entered():
            for address in set(re.findall(r"10\.0\.0\.\d+", PAGE.read_text())):
                ip("address", "add", f"{address}/32", "dev", "lo")
        with closing(Shells(tmp_path, namespace)) as shells:
            yield shells


@pytest.mark.root
@pytest.mark.slow
def test_from_a_bare_switch_to_the_first_training(shells: Shells) -> None:
    certificates, switch, controller, look, train = blocks()
    shells.done(shells.begin(certificates))
    shells.ready(switch)
    shells.ready(controller)
    (said,) = shells.done(shells.begin(look))
    assert "switch 10.0.0.5:9559 Ready" in said
    assert "HELLO path" in said
    second = train.replace("--node-rank 0", "--node-rank 1")
    assert second != train
    first, _ = shells.done(shells.begin(train), shells.begin(second))
    losses = [float(text) for text in re.findall(r"^step \d+ loss ([\d.]+)$", first, re.MULTILINE)]
    assert len(losses) == 20
    assert losses[-1] < losses[0] / 2
    assert re.search(r": [1-9]\d* packets sent$", first, re.MULTILINE), first
