# SPDX-License-Identifier: Apache-2.0
"""Upgrades work as docs/deploying.md says: between releases, and of either of two controllers while a job runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from signal import SIGTERM

import pytest

from p4reduce_bench.processes.children import Child, ChildFailed
from tests.support.cluster.pair import Pair, longest_pause
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Stack, go_on, slots_used, wait_until_back
from tests.support.etcd import Members
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
STEPS = [Call((2000,), seed=seed, pause=0.02) for seed in range(5)]
LAST = "62229f24713cb471937fe6e3b6256b907cb6505f"  # of main, before state files of version 4
PAUSE_S = 3.0
READS = 3  # what that reads


class Releases(Stack):
    """A stack whose controller is of another release while `release` is a folder that has one."""

    release: Path | None = None

    def start(self, name: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Child:
        if self.release is None or name != "controller":
            return super().start(name, module, *arguments, environment=environment)
        # -S leaves out what is installed here, of which only what others have made is there all the same.
        paths = [str(self.release / one) for one in ("hostlib", "controller", "targets")]
        paths += [path for path in sys.path if path.endswith("-packages")]
        program = f"import sys; sys.path[:0] = {paths}; from p4reduce.commands.cli import main; main()"
        return self.start_command(name, [sys.executable, "-I", "-S", "-c", program, *arguments], environment)


@pytest.fixture
def last_release(tmp_path: Path) -> Path:
    """Return a folder with the last release."""
    folder = tmp_path / "release"
    command = ["git", "archive", LAST, "hostlib", "controller", "targets", "p4src"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("needs git")
    if done.returncode != 0:
        pytest.skip(f"needs the history of git, as far as {LAST[:7]}")
    folder.mkdir()
    subprocess.run(["tar", "--extract", "--directory", folder], input=done.stdout, check=True, timeout=60)
    (folder / "controller" / "p4reduce_controller" / "compiled").symlink_to(folder / "p4src" / "compiled")
    return folder


def test_from_release_to_release_and_not_back(tmp_path: Path, last_release: Path) -> None:
    """A job runs on while its controller is upgraded, and a downgrade is refused and does no harm.

    The switch keeps the last release's P4 program, because another one would end the job. The last release refuses the
    state that this release has written.
    """
    state = tmp_path / "state"
    options = ["--state", str(state), "--rejoin-time", "60", "--pipeline", str(last_release / "p4src" / "compiled")]
    with Releases("sim", ["1=udp:127.0.0.1:0"], options=options) as stack:
        stack.stop_controller(SIGTERM)
        state.unlink()
        stack.release = last_release
        stack.start_controller()
        with stack.ranks(STEPS, world_size=2, repeat=True, local="off") as ranks:
            go_on(ranks)
            stack.stop_controller(SIGTERM)
            assert json.loads(state.read_text())["version"] == READS
            stack.release = None
            stack.start_controller()
            wait_until_back(stack, "default")
            go_on(ranks)
            stack.stop_controller(SIGTERM)
            before = state.read_text()
            stack.release = last_release
            with pytest.raises(ChildFailed) as refusal:
                stack.start_controller()
            version = json.loads(before)["version"]
            assert f"it is of version {version}, and this controller reads version {READS}" in str(refusal.value)
            assert state.read_text() == before
            go_on(ranks)
            stack.release = None
            stack.start_controller()
            wait_until_back(stack, "default")
            go_on(ranks)
            ranks.kill_and_end(1)
        wait_until(lambda: slots_used(stack) == 0, "the slots to be free")


@pytest.mark.serial
def test_either_of_two_controllers_is_replaced_while_a_job_runs(tmp_path: Path) -> None:
    with (
        closing(Members(tmp_path)) as etcd,
        Pair(etcd.url, "--rejoin-time", "20", "--store-lease", "10") as pair,
        pair.ranks(STEPS, world_size=3, repeat=True, local="off") as ranks,
    ):
        go_on(ranks)
        serving = pair.serving()
        since = time.time()
        for number in (1 - serving, serving):
            pair.end_one(number, SIGTERM)
            pair.wait_until_serves(1 - number)
            assert pair.start_one(number).get("standby")
            pair.wait_until_all_are_back(1 - number, 3)
            go_on(ranks)
        assert longest_pause(ranks, since) < PAUSE_S
        ranks.kill_and_end(2)
