# SPDX-License-Identifier: Apache-2.0
"""Rate limits of tenants and hosts, of which none slows others."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from prometheus_client import generate_latest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce.settings import MAX_SLOTS
from p4reduce_controller.base.limits import BURST_S, Bucket, Rates
from p4reduce_controller.base.listening import ServiceConfig
from p4reduce_controller.base.sizes import LARGEST_MESSAGE, LARGEST_REQUEST, MOST_READ
from p4reduce_controller.tenants import pace as pace_module
from p4reduce_controller.tenants.pace import FREE_REFUSALS, REFUSAL_DELAY, UNIT_BYTES, Pace, host_of
from tests.support.controller.multi_tenant import USERS, MultiTenantService, refused, refused_or_none
from tests.support.controller.running import Running, Starter
from tests.support.controller.web import Site
from tests.support.waiting import stays, wait_until

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def test_what_is_owed_is_waited_for_once_by_each() -> None:
    bucket = Bucket(10, 0.0)
    assert [bucket.owe(1, 0.0) for _ in range(100)] == [0.0] * 100
    assert [bucket.owe(1, 0.0) for _ in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    assert bucket.owe(5, 0.3) == pytest.approx(0.5)
    assert bucket.take(0.3) > 0.5
    assert bucket.owe(1, 100.0) == 0.0


def test_a_long_message_counts_as_several() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    assert pace.due("a", 1.0, 10 * UNIT_BYTES - 1) == 0.0
    assert pace.due("a", 1.0, 3 * UNIT_BYTES) == pytest.approx(4.0)
    assert pace.due("b", 1.0, 3 * UNIT_BYTES) == 0.0


def test_whoever_comes_is_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "MOST_KNOWN", 50)
    pace = Pace(lambda: 0.0)
    for number in range(150):
        pace.wait(f"10.{number}", "call", 1.0)
        pace.wait("often", "call", 0.01)
    assert len(pace._buckets) == 50
    assert pace.wait("often", "call", 0.01) > 0


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.9:51934", "10.0.0.9"),
        ("ipv6:%5B2001:db8::7%5D:51934", "2001:db8::/64"),
        ("ipv6:[2001:db8::8]:1", "2001:db8::/64"),
        ("ipv6:%5B::1%5D:51934", "::1"),
        ("ipv6:%5B::ffff:10.0.0.9%5D:51934", "10.0.0.9"),
        ("ipv6:%5B::ffff:127.0.0.1%5D:51934", "127.0.0.1"),  # which is a loopback address from Python 3.13 on
        ("unix:", "unix:"),
        ("10.0.0.9", "10.0.0.9"),
        ("2001:db8::9", "2001:db8::/64"),
        ("", ""),
    ],
)
def test_whose_a_connection_is(peer: str, host: str) -> None:
    assert host_of(peer) == host


@pytest.fixture
def narrow(start: Starter) -> Running:
    """Return a controller that allows each host few calls."""
    return start(Running, ServiceConfig("127.0.0.1:0", rates=Rates(joins=0.01, calls=0.01, messages=1.0)))


def limited(running: Running) -> dict[tuple[str, str], int]:
    return dict(running.loop.call(lambda: running.controller.service.guard.pace.limited))


def test_without_users_hosts_are_limited(narrow: Running) -> None:
    with open_grpc_channel(narrow.address) as channel:
        stub = rpc.JobsStub(channel)
        codes = [refused_or_none(lambda: stub.Status(pb.StatusRequest(), timeout=30)) for _ in range(6)]
        assert codes == [None, *[EXHAUSTED] * 5]
        code, said = refused(lambda: stub.Status(pb.StatusRequest(), timeout=10))
        assert (code, said[:50]) == (EXHAUSTED, "127.0.0.1 asks more than 0.01 times a second; try ")
    ranks = [narrow.rank(0, 1, job=str(number), slots=1) for number in range(6)]
    errors = [str(rank.outcome()) for rank in ranks]
    assert sum("127.0.0.1 starts ranks more than 0.01 times a second" in error for error in errors) == 5
    assert (limited(narrow)["", "call"], limited(narrow)["", "join"]) == (6, 5)
    assert b'p4reduce_limited_total{tenant="",what="call"}' in generate_latest(narrow.controller.telemetry.registry)


def test_wrong_tokens_are_written_down_and_soon_told_late(start: Starter, tmp_path: Path) -> None:
    running = start(Running, ServiceConfig("127.0.0.1:0", token="swordfish"), audit=tmp_path / "audit.jsonl")
    with open_grpc_channel(running.address) as channel:
        stub = rpc.JobsStub(channel)
        wrong, right = ((("authorization", f"Bearer {token}"),) for token in ("a secret", "swordfish"))
        now, took = time.monotonic(), []
        running.controller.service.guard.pace._clock = lambda: now  # or else a slow machine makes refusals free again
        for _ in range(int(FREE_REFUSALS * BURST_S) + 4):
            began = time.monotonic()
            said = refused(lambda: stub.Status(pb.StatusRequest(), timeout=10, metadata=wrong))
            assert said == (grpc.StatusCode.UNAUTHENTICATED, "the token is wrong")
            took.append(time.monotonic() - began)
        assert min(took) < REFUSAL_DELAY <= max(took)
        assert refused(lambda: stub.Status(pb.StatusRequest(), timeout=10))[1] == "a token is needed"
        stub.Status(pb.StatusRequest(), timeout=10, metadata=right)
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert {(one["who"], one["what"], one["outcome"]) for one in lines} == {
        ("", "Status", "the token is wrong"),
        ("", "Status", "a token is needed"),
    }


def test_a_host_has_so_many_ranks_at_a_time(start: Starter) -> None:
    running = start(Running, ServiceConfig("127.0.0.1:0", rates=Rates(ranks=3)))
    ranks = [running.rank(rank, 9, slots=1) for rank in range(5)]
    wait_until(lambda: sum(rank.error is not None for rank in ranks) == 2, "refusals")
    assert {str(rank.error).partition(": ")[2] for rank in ranks if rank.error} == {
        "127.0.0.1 has 3 ranks connected, which is its limit"
    }
    assert limited(running)["", "rank"] == 2


def test_messages_of_all_ranks_of_a_host_wait_together(start: Starter) -> None:
    running = start(Running, ServiceConfig("127.0.0.1:0", rates=Rates(messages=1.0)))
    handled = 0
    unanswered = running.jobs.unanswered

    def count(session: object, half: int, now: float) -> None:
        nonlocal handled
        handled += 1
        unanswered(session, half, now)  # type: ignore[arg-type]

    running.jobs.unanswered = count  # type: ignore[method-assign]
    began = time.monotonic()
    ranks = running.job(3, slots=1)
    for rank in ranks:
        for _ in range(100):
            rank.session.ask(0)
    wait_until(lambda: handled >= 7 and limited(running)["", "message"], "messages")
    stays(lambda: handled <= 10 + (time.monotonic() - began), "messages beyond the limit are handled", 0.5)


def test_the_page_is_limited_too(narrow: Running) -> None:
    with Site(narrow, page="127.0.0.1:0") as site:
        site.look()
        assert [site.get("/api/status")[0] for _ in range(3)] == [200, 429, 429]


@pytest.mark.parametrize("users", [False, True])
def test_what_is_too_large_is_refused_and_counted(start: Starter, tmp_path: Path, users: bool) -> None:
    service = start(MultiTenantService, tmp_path) if users else start(Running)
    token = (("authorization", "Bearer b"),) if users else ()
    tenant = "bob" if users else ""
    with open_grpc_channel(service.address) as channel:
        stub = rpc.JobsStub(channel)
        for size in (LARGEST_REQUEST + 1, 2 * MOST_READ):  # the second is refused by gRPC itself
            large = pb.AbortJobRequest(job="x" * size)
            code, said = refused(lambda large=large: stub.AbortJob(large, timeout=10, metadata=token))  # type: ignore[misc]
            assert (code, str(size)[:3] in said) == (EXHAUSTED, True)
        first = pb.ClientMessage(join=pb.Join(job="x" * LARGEST_MESSAGE))
        [answer] = stub.Session(iter([first]), timeout=10, metadata=token)
        assert f"bytes: must be at most {LARGEST_MESSAGE}" in answer.abort.message
    assert limited(service)[tenant, "size"] == 2


def test_a_rank_may_tell_the_rounds_of_all_slots(start: Starter) -> None:
    rounds = pb.Rounds(number=2**64 - 1, rounds=[2**32 - 1] * (MAX_SLOTS // 2))  # of one of two aggregators
    with open_grpc_channel(start(Running).address) as channel:
        session = rpc.JobsStub(channel).Session(iter([pb.ClientMessage(rounds=rounds)]), timeout=10)
        [answer] = session
    assert "must be Join or Rejoin" in answer.abort.message


FLOOD = """
import sys, time, threading
from p4reduce.control import jobs_pb2 as pb, rpc
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce.settings import MAX_SLOTS
address, token, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
metadata = (("authorization", "Bearer " + token),)
end = time.monotonic() + seconds
asked = 0

def flood(kind):
    global asked
    with open_grpc_channel(address) as channel:
        stub = rpc.JobsStub(channel)
        waiting = set()
        while time.monotonic() < end:
            if len(waiting) < 300:
                asked += 1
                number = asked
                waiting.add(number)
                if kind == "status":
                    one = stub.Status.future(pb.StatusRequest(), metadata=metadata, timeout=30)
                else:
                    join = pb.ClientMessage(join=pb.Join(job="j%d" % number, rank=0, world_size=2, slots=1))
                    one = stub.Session(iter([join]), metadata=metadata, timeout=30)
                if not one.add_callback(lambda number=number: waiting.discard(number)):
                    waiting.discard(number)
            else:
                time.sleep(0.001)

print("on", flush=True)
threads = [threading.Thread(target=flood, args=(kind,), daemon=True) for kind in ("status", "status", "join", "join")]
for thread in threads: thread.start()
for thread in threads: thread.join(seconds + 5)
print(asked, flush=True)
import os
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.serial
def test_a_flood_of_one_tenant_does_not_slow_another(start: Starter, tmp_path: Path) -> None:
    users = USERS.replace("ranks = 5", "ranks = 50\njoins_per_s = 1")
    service = start(MultiTenantService, tmp_path, users, slots=64)

    def took(what: int) -> float:
        began = time.monotonic()
        service.job(2, token="b", job=f"quick{what}", slots=1)
        service.status("b")
        return time.monotonic() - began

    quiet = statistics.median([took(number) for number in range(5)])
    with subprocess.Popen(
        [sys.executable, "-c", FLOOD, service.address, "a", "4"], stdout=subprocess.PIPE, text=True
    ) as flood:
        flood.stdout.readline()
        time.sleep(0.5)
        flooded = statistics.median([took(number) for number in range(5, 12)])
        asked = int(flood.stdout.read())
    print(json.dumps({"quiet_s": quiet, "flooded_s": flooded, "asked": asked}))
    assert asked > 500
    counted = limited(service)
    assert counted["alice", "call"] > 50
    assert counted["alice", "join"] > 0
    assert flooded < 1.0 + 3 * quiet
