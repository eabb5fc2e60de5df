# SPDX-License-Identifier: Apache-2.0
"""Back-ups work as docs/deploying.md says: the state file is copied while jobs run, and restored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from signal import SIGTERM

import pytest

from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Stack, go_on, job, kept, slots_used, wait_until_back
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

STEPS = [Call((2000,), seed=seed, pause=0.02) for seed in range(5)]


def put_back(stack: Stack, copy: Path, state: Path) -> None:
    stack.stop_controller(SIGTERM)
    state.unlink()
    shutil.copy(copy, state)
    state.chmod(0o600)
    stack.start_controller()


def test_a_copy_that_is_put_back(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    with kept(tmp_path, target="native") as stack:
        with stack.ranks(STEPS, job="runs", world_size=2, repeat=True, local="off") as runs:
            go_on(runs)
            with stack.ranks(STEPS, job="ended", world_size=2, local="off") as ended:
                ended.wait_for("done")
                shutil.copy(state, copy)
                ended.end_well()
            wait_until(lambda: not job(stack, "ended"), "the job that has ended to be forgotten")
            assert [one["name"] for one in json.loads(copy.read_text())["jobs"]] == ["runs", "ended"]
            with stack.ranks(STEPS, job="later", world_size=2, repeat=True, local="off") as later:
                go_on(later)
                put_back(stack, copy, state)
                for last in later.wait_for_ends().values():
                    assert last.get("error") == "JobAborted", last
                    assert "does not know the job" in last["message"], last
            wait_until_back(stack, "runs")
            go_on(runs)
            # The job that has ended since is none of the switch's any more.
            wait_until(lambda: not job(stack, "ended"), "the job that has ended to be forgotten")
            go_on(runs)
            runs.kill_and_end(1)
        wait_until(lambda: slots_used(stack) == 0, "the slots to be free")
