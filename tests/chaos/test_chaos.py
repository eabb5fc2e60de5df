# SPDX-License-Identifier: Apache-2.0
"""Chaos, for a while; and what it would not let pass."""

import json
import shutil
import subprocess
import sys
import time
from typing import Any

import pytest

from p4reduce.control import jobs_pb2 as pb
from tests.chaos.verdicts import Attempt, is_clear, problems
from tests.chaos.watch import wrong_with
from tests.support.bfrt.stack import need
from tests.support.own_network import Namespace

CHANGE = [(100.0, 104.0)]


def attempt(*results: dict[str, Any], killed: dict[int, float] | None = None) -> Attempt:
    found = Attempt("job", "red", len(results), 90.0, killed=killed or {})
    for rank, result in enumerate(results):
        if result:
            found.results[rank] = {"rank": rank, "job": "job", "blamed": None, "began": 101.0, "at": 102.0, **result}
    return found


DONE = {"event": "done"}
LOST = {
    "event": "error",
    "phase": "run",
    "kind": "JobAborted",
    "blamed": 1,
    "text": "job 'job': rank 1 was lost: its c",
}
STOPPED = {"event": "error", "phase": "join", "kind": "JoinError", "text": "job 'job': the controller was stopped"}


def test_what_is_right() -> None:
    assert problems(attempt(DONE, DONE), []) == []
    assert problems(attempt(LOST, {}, killed={1: 100.0}), []) == []
    assert problems(attempt(STOPPED, STOPPED), CHANGE) == []


@pytest.mark.parametrize(
    ("results", "killed", "said"),
    [
        ((DONE, {}), {}, "rank 1 ended without a word"),
        ((DONE, {"event": "wrong", "text": "1 of 2 elements"}), {}, "a wrong sum: 1 of 2 elements"),
        ((LOST, LOST), {}, "nothing was done to it"),
        ((LOST, {}), {0: 100.0, 2: 100.0}, "the wrong rank is blamed"),
        (({**LOST, "text": "Internal error"}, {}), {1: 100.0}, "unclear"),
        (({**STOPPED, "phase": "run"}, DONE), {}, "nothing was done to it"),
        (({**STOPPED, "began": 130.0, "at": 131.0}, DONE), {}, "nothing was done to it"),
    ],
)
def test_what_is_wrong(results: Any, killed: dict[int, float], said: str) -> None:
    assert any(said in one for one in problems(attempt(*results, killed=killed), CHANGE))


@pytest.mark.parametrize("text", ["", "timed out", "rank 3", "StatusCode.UNKNOWN: Unexpected <class 'KeyError'>: 7"])
def test_who_and_why_are_said(text: str) -> None:
    assert not is_clear(text)


def test_quotas_and_slots_are_watched() -> None:
    pools = [pb.Pool(switch=0, first=0, count=8), pb.Pool(switch=0, first=4, count=8)]
    reply = pb.StatusReply(
        switches=[pb.Switch(name="s", slots=16, slots_used=12)],
        jobs=[pb.Job(name=f"job {at}", pools=[pool]) for at, pool in enumerate(pools)],
        tenants=[pb.Tenant(name="red", jobs=3, most_jobs=2, slots=16, most_slots=16)],
    )
    assert wrong_with(reply) == [
        "tenant red has 3 jobs, and may have 2",
        *(f"slot {slot} of switch 0 is of both job 0 and job 1" for slot in range(4, 8)),
        "12 slots of the switch s are used, and jobs have 16",
    ]


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.skipif(shutil.which("etcd") is None, reason="needs etcd (Debian: etcd-server)")
def test_nothing_is_wrong_after_chaos() -> None:
    """Some 20 s of it."""
    command = [sys.executable, "-m", "tests.chaos", "--jobs", "27", "--at-a-time", "9", "--json"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert found["jobs"] == 27
    assert found["done_well"] >= 15
    assert sum(found["faults"].values()) >= 1
    assert found["never_served"] == 0
    assert found["seconds"] < time.monotonic() - began


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.p4c
@pytest.mark.root
@pytest.mark.skipif(shutil.which("etcd") is None, reason="needs etcd (Debian: etcd-server)")
def test_nothing_is_wrong_after_chaos_on_switches_over_bf_runtime() -> None:
    need("tofino1-64")
    Namespace().close()  # it skips the test without root
    command = [sys.executable, "-m", "tests.chaos", "--jobs", "6", "--at-a-time", "3", "--ranks", "2", "--json"]
    done = subprocess.run(
        [*command, "--target", "tofino1-64"], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert found["done_well"] >= 3
    assert found["never_served"] == 0


@pytest.mark.slow
@pytest.mark.serial
def test_a_hostile_tenant_neither_reaches_another_nor_keeps_it_out() -> None:
    """Two of the attacks run for some seconds. Without limits, 1024 sockets of one host could keep all others out."""
    few = ["sh", "-c", 'ulimit -Sn 1024 && exec "$@"', "sh"]
    command = [*few, sys.executable, "-m", "tests.chaos.hostile"]
    command += ["--seconds", "2", "--json", "--attack", "connections", "--attack", "slots"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["failures"] == []
    assert all(found["reach"].values()), found["reach"]
    for attack, row in found["rows"].items():
        assert row["beside"]["join_s"]["median"] < 1.0, (attack, row)
        assert row["attacker"]["let_in"] > 0
