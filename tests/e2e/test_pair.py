# SPDX-License-Identifier: Apache-2.0
"""Two controllers with their state in etcd: if either ends, or stands still, jobs carry on with the other."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.grpc_channels import open_grpc_channel
from tests.support.cluster.pair import Pair, longest_pause
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Ranks, go_on
from tests.support.etcd import NO_PROXY, Members
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.serial, pytest.mark.slow]

TAKE_OVER_S = 3.0
PAUSE_S = 1.0
STEPS = [Call((20_000,), seed=seed) for seed in range(5)]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    with closing(Members(tmp_path_factory.mktemp("etcd"))) as members:
        yield members


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda one: str(one.name))
def test_jobs_carry_on_with_the_other(etcd: Members, how: signal.Signals, report: list[str]) -> None:
    with Pair(f"{etcd.url}/{how.name}") as pair, pair.ranks(STEPS, world_size=4, repeat=True, local="off") as ranks:
        go_on(ranks)
        for _ in range(2):  # the second time, back
            first = pair.serving()
            other = 1 - first
            pair.wait_until_all_are_back(first, 4)
            since = time.time()
            pair.signal_one(first, how)
            _, took = pair.wait_until_serves(other)
            back = pair.wait_until_all_are_back(other, 4)
            pair.end_one(first)
            go_on(ranks)
            pause = longest_pause(ranks, since)
            report.append(
                f"{how.name}: serves after {took:.2f} s, ranks are back {back:.2f} s later, pause {pause:.2f} s"
            )
            assert took < TAKE_OVER_S, report
            assert pause < PAUSE_S, report
            assert pair.start_one(first)["standby"]
        ends_as_one(pair, ranks, pair.serving())


def ends_as_one(pair: Pair, ranks: Ranks, serving: int) -> None:
    """Kill rank 1, and check that the other ranks name it and that the controller frees the job's slots."""
    ranks.kill_and_end(1)

    def nothing() -> bool:
        reply = pair.status(serving)
        return reply is not None and not reply.jobs and not any(switch.slots_used for switch in reply.switches)

    wait_until(nothing, "the slots to be free")


@pytest.fixture
def report() -> Iterator[list[str]]:
    lines: list[str] = []
    yield lines
    print(*lines, sep="\n")


def test_a_controller_that_stands_still_is_replaced_and_does_no_harm_when_it_goes_on(
    etcd: Members, report: list[str]
) -> None:
    with Pair(f"{etcd.url}/stopped") as pair, pair.ranks(STEPS, world_size=4, repeat=True, local="off") as ranks:
        go_on(ranks)
        first = pair.serving()
        other = 1 - first
        since = time.time()
        pair.signal_one(first, signal.SIGSTOP)
        _, took = pair.wait_until_serves(other)
        back = pair.wait_until_all_are_back(other, 4)
        go_on(ranks)
        pair.signal_one(first, signal.SIGCONT)
        wait_until(lambda: "standby" in str(pair.controllers[first].read()), "the first to stand by", 10)
        go_on(ranks)
        pause = longest_pause(ranks, since)
        report.append(f"SIGSTOP: serves after {took:.2f} s, ranks are back {back:.2f} s later, pause {pause:.2f} s")
        assert took < TAKE_OVER_S, report
        assert pause < PAUSE_S, report
        assert pair.serving() == other
        ends_as_one(pair, ranks, other)


def test_what_commands_change_is_the_others_too(etcd: Members) -> None:
    """Each controller says over HTTP whether it serves."""
    options = ("--metrics", "127.0.0.1:0", "--page", "127.0.0.1:0")
    with (
        Pair(f"{etcd.url}/changes", *options, aggregators=2) as pair,
        pair.ranks(STEPS, world_size=2, repeat=True, local="off") as ranks,
    ):
        go_on(ranks)
        first = pair.serving()
        other = 1 - first
        assert seen(pair, first) == (200, 1.0)
        assert seen(pair, other) == (503, 0.0)
        code, told = get(f"http://{pair.said[other]['page']}/api/status")
        assert (code, "this controller stands by" in told) == (503, True)
        assert get(f"http://{pair.said[other]['page']}/")[0] == 200
        with open_grpc_channel(pair.controller_addresses[first]) as channel:
            stub = rpc.JobsStub(channel)
            name = stub.Status(pb.StatusRequest(), timeout=10).switches[1].name
            stub.DrainSwitch(pb.DrainSwitchRequest(name=name), timeout=10)
        pair.end_one(first)
        pair.wait_until_serves(other)
        reply = pair.status(other)
        assert reply is not None
        assert [one.draining for one in reply.switches] == [False, True]
        assert seen(pair, other) == (200, 1.0)
        pair.wait_until_all_are_back(other, 2)
        go_on(ranks)


def seen(pair: Pair, number: int) -> tuple[int, float]:
    """Return the status of /readyz and the metric p4reduce_serving of one controller."""
    at = f"http://{pair.said[number]['metrics']}"
    found = re.search(r"^p4reduce_serving (\S+)$", get(f"{at}/metrics")[1], re.MULTILINE)
    assert found is not None
    return get(f"{at}/readyz")[0], float(found[1])


def get(url: str) -> tuple[int, str]:
    try:
        with NO_PROXY.open(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_an_outage_of_etcd_ends_no_job(tmp_path: Path) -> None:
    with (
        closing(Members(tmp_path)) as etcd,
        Pair(etcd.url) as pair,
        pair.ranks(STEPS, world_size=2, repeat=True, local="off") as ranks,
    ):
        go_on(ranks)
        since = time.time()
        first = pair.serving()
        etcd.signal(0, signal.SIGKILL)
        ranks.work(5)
        go_on(ranks)
        assert pair.status(first) is not None
        etcd.start(0)
        etcd.wait()
        ranks.work(3)  # for leases
        go_on(ranks)
        assert longest_pause(ranks, since) < PAUSE_S
        pair.end_one(pair.serving())
        other = pair.serving()
        pair.wait_until_all_are_back(other, 2)
        go_on(ranks)
        ends_as_one(pair, ranks, other)


def test_members_of_etcd_come_and_go(tmp_path: Path, report: list[str]) -> None:
    with (
        closing(Members(tmp_path, 3)) as etcd,
        Pair(etcd.url) as pair,
        pair.ranks(STEPS, world_size=2, repeat=True, local="off") as ranks,
    ):
        go_on(ranks)
        for number, what in enumerate((signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL)):
            since = time.time()
            etcd.signal(number, what)
            ranks.work(2)
            first = pair.serving()
            other = 1 - first
            pair.end_one(first)
            _, took = pair.wait_until_serves(other)
            pair.wait_until_all_are_back(other, 2)
            go_on(ranks)
            pause = longest_pause(ranks, since)
            report.append(f"member {number} has {what.name}, controller SIGKILL: {took:.2f} s, pause {pause:.2f} s")
            assert pause < PAUSE_S, report
            pair.start_one(first)
            if what == signal.SIGKILL:
                etcd.start(number)
            else:
                etcd.signal(number, signal.SIGCONT)
            etcd.wait()
            ranks.work(1)
        ends_as_one(pair, ranks, pair.serving())
