# SPDX-License-Identifier: Apache-2.0
"""Two controllers with users, and with switches that come and go: either carries on with the other's state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from p4reduce import Communicator
from tests.support.cluster.site import Site
from tests.support.cluster.stack import START_UP_S
from tests.support.controller.users import user
from tests.support.etcd import Members

pytestmark = [pytest.mark.serial, pytest.mark.slow]

USERS = user("alice", "a") + user("bob", "b") + user("olga", "o", role="operator")
WITHIN = 30.0


class Two(Site):
    """The first serves, until it is killed."""

    def begin_both(self, store: str, users: Path) -> None:
        self.switch("one")
        self.write()
        options = [*self._controller_options, "--store", store, "--standby", "--users", str(users)]
        options += ["--listen", "127.0.0.1:0", "--json"]
        self.both = [self.start(f"controller {number}", "p4reduce", "controller", *options) for number in range(2)]
        self.controller = ",".join(child.first(START_UP_S)["listen"] for child in self.both)

    def asked(self, token: str, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "p4reduce", *command, "--controller", self.controller],
            env={**os.environ, "P4REDUCE_TOKEN": token},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout + done.stderr

    def wait_until(self, what: str, token: str, *command: str) -> None:
        deadline = time.monotonic() + WITHIN
        while what not in (said := self.asked(token, *command)):
            assert time.monotonic() < deadline, (what, said)


def test_users_jobs_and_switches_outlive_a_controller(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text(USERS)
    with closing(Members(tmp_path)) as etcd, Two(tmp_path, "native") as two:
        two.begin_both(f"{etcd.url}/many", users)
        two.switch("two")
        two.read_again(*two.both)
        two.wait_until('"two"', "o", "switches", "list", "--json")
        with Communicator(
            job="mine", rank=0, world_size=1, slots=8, controller=two.controller, token="a", local="off"
        ) as communicator:
            tensor = np.ones(10_000, np.float32)
            communicator.allreduce(tensor)
            two.both[0].process.kill()
            two.wait_until('"two"', "o", "switches", "list", "--json")
            listed = json.loads(two.asked("o", "jobs", "list", "--json"))
            assert [(job["tenant"], job["user"], job["name"], len(job["pools"])) for job in listed] == [
                ("alice", "alice", "mine", 2)
            ]
            assert json.loads(two.asked("b", "jobs", "list", "--json")) == []
            assert "is for the role operator" in two.asked("a", "switches", "drain", "two")
            assert "there is no job 'mine'" in two.asked("b", "jobs", "abort", "mine")
            communicator.allreduce(tensor)
            np.testing.assert_array_equal(tensor, 1)
            assert "takes no new jobs; mine run there" in two.asked("o", "switches", "drain", "two")
            status = json.loads(two.asked("o", "status", "--json"))
            [hours] = [one["slot_hours"] for one in status["tenants"] if one["name"] == "alice"]
            assert hours > 0
        two.wait_until("[]", "o", "jobs", "list", "--json")
