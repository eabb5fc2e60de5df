# SPDX-License-Identifier: Apache-2.0
"""The soak, for some seconds: rounds through the native switch, losses, and no sum but the right one."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from p4reduce_bench.allreduce.grid import Case
from tests.chaos.soak import resident, soak, totals, trend
from tests.chaos.soak_rank import Reduction, WrongSum
from tests.support.waiting import wait_until

DROP_RATE = 0.01
GROWN_KIB = 2048


def start(state: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.chaos.soak", "--state", str(state), "--json", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"workers": 4, "ranks_per_host": 2}, {"rank_threads": 2}])
def test_every_sum_is_right_of_hosts_and_threads(options: dict[str, int]) -> None:
    run = soak(100_000, drop_rate=DROP_RATE, **options)  # type: ignore[arg-type]
    assert run["rounds"] >= 100_000
    assert run["lost_in"] == pytest.approx(DROP_RATE * run["packets"], rel=0.3)
    assert run["packets"] < 3 * run["rounds"]  # of two streams, not four


@pytest.mark.slow
def test_every_sum_is_right_and_memory_is_flat() -> None:
    """A wrong sum would end it with ChildFailed."""
    rounds = 500_000
    run = soak(rounds, drop_rate=DROP_RATE)
    assert run["rounds"] >= rounds
    assert run["elements_checked"] > run["rounds"] * 64
    assert run["lost_in"] == pytest.approx(DROP_RATE * run["packets"], rel=0.2)
    assert run["lost_out"] == pytest.approx(DROP_RATE * run["packets"], rel=0.2)
    assert run["resent"] >= run["lost_in"]
    assert run["memory"].keys() == {"switch (native)", "controller", "rank 0", "rank 1"}
    for name, memory in run["memory"].items():
        assert memory["growth_kib"] < GROWN_KIB, f"{name}: {memory}"


def test_a_process_that_has_ended_has_no_memory() -> None:
    process = subprocess.Popen(["sleep", "60"])
    size = resident(process.pid)
    assert size is not None
    assert size > 0
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # as a zombie
    assert resident(process.pid) is None
    process.wait()
    assert resident(process.pid) is None


def test_a_wrong_element_is_found() -> None:
    reduction = Reduction.of(Case(2, 1 << 12, "float32", 0.5, "random", "block"), 0)
    reduction.prepare(3)
    reduction.work[:] = reduction.expected
    reduction.check(3)
    reduction.work[77] += 1
    with pytest.raises(WrongSum, match="1 of 4096 elements are wrong, the first at 77"):
        reduction.check(3)


def test_each_turn_has_other_values() -> None:
    reduction = Reduction.of(Case(2, 1 << 12, "int32", 1.0, "all", "block"), 1)
    reduction.prepare(1)
    former = reduction.expected.copy()
    reduction.prepare(2)
    assert np.count_nonzero(former == reduction.expected) == np.count_nonzero(former == 0)


def test_a_leak_shows_in_the_trend() -> None:
    """A megabyte a million rounds, after a start that takes a hundred."""
    samples = [(1000 * i, (100 << 20) + (1 << 20) * i // 1000) for i in range(200)]
    samples[:40] = [(1000 * i, (2 << 20) * i) for i in range(40)]
    found = trend(samples)
    assert found["slope_kib"] == pytest.approx(1024, rel=0.01)
    assert found["growth_kib"] == pytest.approx(100, rel=0.1)
    flat = trend([(1000 * i, 100 << 20) for i in range(200)])
    assert flat["slope_kib"] == pytest.approx(0, abs=1e-6)


@pytest.mark.slow
def test_runs_add_up(tmp_path: Path) -> None:
    state = tmp_path / "made" / "soak.json"
    for rounds in (20_000, 40_000):
        process = start(state, "--rounds", str(rounds), "--slots", "64")
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        found = json.loads(output)
        assert found["rounds"] >= rounds
    runs = json.loads(state.read_text())["runs"]
    assert found["runs"] == len(runs) == 2
    assert found["rounds"] == totals(runs)["rounds"] == runs[0]["rounds"] + runs[1]["rounds"]


def catches(process: str, number: signal.Signals) -> bool:
    """Return whether the process has a handler for the signal."""
    [caught] = re.findall(r"^SigCgt:\s(\w+)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param("seconds", marks=pytest.mark.slow)])
def test_it_stops_in_order(how: "signal.Signals | str", tmp_path: Path) -> None:
    state = tmp_path / "soak.json"
    process = start(state, *(["--seconds", "1"] if how == "seconds" else []))
    try:
        if isinstance(how, signal.Signals):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            wait_until(lambda: len(children.read_text().split()) >= 4, "a switch, a controller and two ranks", 60)
            ranks = children.read_text().split()[2:4]
            wait_until(lambda: all(catches(rank, signal.SIGTERM) for rank in ranks), "the ranks to be able to stop", 60)
            process.send_signal(how)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == (0 if how == "seconds" else 130), errors
    assert 0 < json.loads(output)["rounds"] < 1e7
    assert json.loads(state.read_text())["runs"][0]["interrupted"] == (how == signal.SIGINT)


@pytest.mark.parametrize("content", ["", "[]", '{"version": 0, "runs": []}', '{"version": 1, "runs": [{}]}'])
def test_a_strange_state_is_refused(content: str, tmp_path: Path) -> None:
    state = tmp_path / "soak.json"
    state.write_text(content)
    process = start(state, "--rounds", "1")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"--state {state}" in "".join(errors.splitlines())
    assert state.read_text() == content
    assert os.listdir(tmp_path) == ["soak.json"]
