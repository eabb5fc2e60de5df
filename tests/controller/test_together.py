# SPDX-License-Identifier: Apache-2.0
"""Users, switches that come and go, what is kept for the next controller, and what is shown, each beside the others."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce_controller.base.limits import Rates
from p4reduce_controller.base.listening import ServiceConfig
from p4reduce_controller.fabric.changes import with_switches_of
from p4reduce_controller.observability.metrics import Metrics
from p4reduce_controller.observability.watch import Watch
from p4reduce_controller.service.status import status_of
from p4reduce_controller.settings.settings import Settings
from p4reduce_controller.standby.standby import Standby
from p4reduce_controller.standby.standby_web import standby_web
from p4reduce_controller.switches.availability import Unavailable
from p4reduce_controller.switches.trees import Trees
from p4reduce_controller.tenants.access import METHODS
from p4reduce_controller.tenants.audit import Audit
from p4reduce_controller.tenants.gate import Gate, Peers
from p4reduce_controller.tenants.pace import Pace
from p4reduce_controller.tenants.users import UsersFile
from tests.support.controller.fake_etcd import FakeEtcd
from tests.support.controller.jobs_harness import LEAF1, TreeHarness
from tests.support.controller.multi_tenant import USERS, MultiTenantService, refused
from tests.support.controller.ranks import ready
from tests.support.controller.running import Loop, Running, Starter
from tests.support.controller.standby import Controller, after
from tests.support.controller.stored_jobs import StoredJobs
from tests.support.controller.web import Site
from tests.support.waiting import wait_until

DENIED, MISSING = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND


@pytest.fixture
def service(start: Starter, tmp_path: Path) -> MultiTenantService:
    return start(MultiTenantService, tmp_path, text=USERS.replace("calls_per_s = 0.2", ""))


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("AddSwitch", pb.AddSwitchRequest(settings="{}")),
        ("DrainSwitch", pb.DrainSwitchRequest(name="s")),
        ("RemoveSwitch", pb.RemoveSwitchRequest(name="s")),
    ],
)
def test_switches_are_the_operators(service: MultiTenantService, method: str, request_: Any) -> None:
    assert method not in METHODS
    for token in ("a", "v"):
        assert refused(lambda token=token: service.ask(method, request_, token))[0] is DENIED
    assert refused(lambda: service.ask(method, request_, "o"))[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert service.audit[-1]["who"] == "olga"
    assert "switch" in service.audit[-1]["what"]


def test_slots_are_shown_to_the_jobs_tenant(service: MultiTenantService) -> None:
    service.job(1, token="a", slots=2)
    [job] = service.jobs
    service.switch.halves = dict.fromkeys(range(4), (job.first_seq, 0))
    assert len(service.ask("Slots", pb.SlotsRequest(job="job"), "a").halves) == 4
    assert len(service.ask("Slots", pb.SlotsRequest(job="job", tenant="alice"), "o").halves) == 4
    code, text = refused(lambda: service.ask("Slots", pb.SlotsRequest(job="job", tenant="alice"), "b"))
    assert (code, text) == (MISSING, "there is no job 'job'; the jobs are none")
    assert refused(lambda: service.ask("Slots", pb.SlotsRequest(job="job"), "v"))[0] is DENIED


def test_whose_jobs_are_at_a_switch_others_do_not_see(service: MultiTenantService) -> None:
    service.job(1, token="a", job="mine")
    service.job(1, token="b", job="his")
    assert [sorted(service.status(who).switches[0].jobs) for who in "abo"] == [["mine"], ["his"], ["his", "mine"]]


@pytest.fixture
def page(service: MultiTenantService) -> Iterator[Site]:
    with Site(service, page="127.0.0.1:0") as page:
        yield page


def get(page: Site, path: str, token: str = "") -> tuple[int, bytes]:
    code, _, body = page.get(path, {"Authorization": f"Bearer {token}"} if token else None)
    return code, body


def test_the_page_shows_each_what_it_may_see(service: MultiTenantService, page: Site) -> None:
    ready([service.rank(0, 1, token="a", job="j"), service.rank(0, 1, token="b", job="j")])
    page.look()
    seen = {who: sorted(job["name"] for job in json.loads(get(page, "/api/status", who)[1])["jobs"]) for who in "abvo"}
    assert seen == {"a": ["alice/j"], "b": ["bob/j"], "v": ["alice/j"], "o": ["alice/j", "bob/j"]}
    assert sorted(json.loads(get(page, "/api/history", "b")[1])["jobs"]) == ["bob/j"]
    code, body = get(page, "/metrics", "o")
    assert code == 200
    lines = body.decode().splitlines()
    assert {line for line in lines if line.startswith("p4reduce_job_ranks{")} == {
        'p4reduce_job_ranks{job_name="j",tenant="alice"} 1.0',
        'p4reduce_job_ranks{job_name="j",tenant="bob"} 1.0',
    }
    assert {'p4reduce_tenant_jobs{tenant="bob"} 1.0', 'p4reduce_queue_length{queue="slots"} 0.0'} < {*lines}
    assert "p4reduce_serving 1.0" in lines
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series))


def test_what_the_page_refuses_is_written_down(service: MultiTenantService, page: Site) -> None:
    assert get(page, "/healthz")[0] == 200
    assert get(page, "/api/status", "a secret")[0] == 401
    assert get(page, "/metrics", "a")[0] == 403
    assert get(page, "/api/history")[0] == 401
    said = [(one["who"], one["what"], one["outcome"], one["peer"].rpartition(":")[0]) for one in service.audit]
    assert said == [
        ("", "page /api/status", "the token is wrong", "ipv4:127.0.0.1"),
        ("alice", "page /metrics", "metrics are for callers who may see the jobs of all tenants", "ipv4:127.0.0.1"),
        ("", "page /api/history", "a token is needed", "ipv4:127.0.0.1"),
    ]
    gate = service.controller._gate
    assert gate.refusals == {"": 2, "alice": 1}


def full() -> tuple[TreeHarness, object]:
    """Return a harness with two switches that are full of one job, and the session of that job's only rank."""
    harness = TreeHarness(Trees(["s0", "s1"]), slots=8)
    return harness, harness.join(0, 1, "first", slots=16)


def test_who_comes_from_the_queue_has_the_switches_that_there_are_then() -> None:
    harness, first = full()
    waits = harness.join(0, 1, "next", queue_s=600.0)
    harness.absent = {1: "it is being drained"}
    harness.jobs.lost(first)
    harness.tick(2.0)
    assert "assigned" in harness.kinds(waits)
    job = harness.jobs.named("next")
    assert job.site.numbers == (0,)
    assert job.excluded_switches == ["the switch s1 cannot be used: it is being drained"]


def test_who_waits_for_a_switch_that_goes_is_told_so() -> None:
    harness, first = full()
    waits = harness.join(0, 1, "next", queue_s=600.0, switch="s1", slots=2)
    harness.absent = {1: "it is being drained"}
    harness.jobs.lost(first)
    harness.tick(2.0)
    last = harness.last(waits)
    assert (last.reason, last.rank) == (pb.JOIN_REFUSED, 0)
    assert last.message == "job 'next': rank 0 is refused: the switch s1 cannot be used: it is being drained"
    assert [pool.used for pool in harness.jobs.pools] == [0, 0]


def test_whose_a_job_is_and_what_was_used_is_in_etcd(tmp_path: Path) -> None:
    etcd = FakeEtcd()
    one = Controller(etcd, tmp_path / "one")
    assert one.load() == []
    one.stored.job("a", LEAF1)
    [job] = one.stored.harness.jobs
    job.tenant, job.user = "vision", "alice"
    one.state.use = {"month": "2030-01", "slot_seconds": {"vision": 7.0}}
    one.keep()
    two = after(etcd, tmp_path)
    [found] = two.load()
    assert (found.tenant, found.user) == ("vision", "alice")
    assert two.state.use == one.state.use


def test_use_is_kept_where_no_job_is(tmp_path: Path) -> None:
    stored = StoredJobs(tmp_path)
    stored.file.use = {"slot_seconds": {"vision": 7.0}}
    stored.save()
    stored.file.use = {}
    assert stored.load() == []
    assert stored.file.use == {"slot_seconds": {"vision": 7.0}}
    stored.close()


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("AbortJob", pb.AbortJobRequest(job="job")),
        ("Slots", pb.SlotsRequest(job="job")),
        ("DrainSwitch", pb.DrainSwitchRequest(name="s")),
    ],
)
def test_who_may_not_serve_any_more_changes_nothing(start: Starter, tmp_path: Path, method: str, request_: Any) -> None:
    running = start(Running, state=tmp_path / "state")
    ranks = running.job(1)
    assert running.state is not None
    running.loop.call(setattr, running.state, "maybe_lost_leadership", Unavailable("etcd is away"))
    assert str(running.controller.unavailable) == "another controller may serve: etcd is away"
    stands_by = grpc.StatusCode.UNAVAILABLE, "this controller stands by: etcd is away"
    assert refused(lambda: running.ask(method, request_)) == stands_by
    assert ranks[0].session.aborted is None
    running.loop.call(setattr, running.state, "maybe_lost_leadership", None)


def test_who_stands_by_says_so_to_users_alone(loop: Loop, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text(USERS)

    async def begin() -> Standby:
        standby = Standby(ServiceConfig(listen="127.0.0.1:0"), lambda: "at b:1", Gate(UsersFile(users), Audit()))
        await standby.start()
        return standby

    standby = loop.run(begin())

    def call(token: str) -> Callable[[], None]:
        def asked() -> None:
            with open_grpc_channel(standby.listen) as channel:
                metadata = (("authorization", f"Bearer {token}"),)
                rpc.JobsStub(channel).Status(pb.StatusRequest(), timeout=10, metadata=metadata)

        return asked

    assert refused(call("x")) == (grpc.StatusCode.UNAUTHENTICATED, "the token is wrong")
    code, text = refused(call("b"))
    assert (code, text) == (grpc.StatusCode.UNAVAILABLE, "this controller stands by; the one that serves is at b:1")
    loop.run(standby.close())


def test_who_stands_by_says_so_over_http(loop: Loop) -> None:
    settings = Settings(metrics="127.0.0.1:0", page="127.0.0.1:0")
    other = [""]
    web = standby_web(settings, ServiceConfig(), lambda: other[0], Peers(Rates(), Pace()))
    loop.run(web.start())

    def get(path: str, at: str = "") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(at or web.metrics, timeout=10)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()

    assert get("/readyz") == (503, b'{"ok": false, "problem": "this controller stands by"}')
    other[0] = "at b:1"
    text = "this controller stands by; the one that serves is at b:1"
    assert json.loads(get("/readyz")[1])["problem"] == text
    assert get("/healthz")[0] == 200
    assert b"p4reduce_serving 0.0" in get("/metrics")[1]
    assert get("/", web.page)[0] == 200
    code, body = get("/api/status", web.page)
    assert (code, json.loads(body)) == (503, {"error": text, "standby": "yes"})
    loop.run(web.close())
    assert standby_web(Settings(), ServiceConfig(), lambda: "", Peers(Rates(), Pace())) is None


def test_a_standby_takes_switches_alone_from_a_file_that_is_read_again() -> None:
    before = Settings(switches=[{"switch": "a:1", "address": "10.0.0.1"}], listen="127.0.0.1:7700")
    now = Settings(switches=[{"switch": "b:1", "address": "10.0.0.2"}], listen="127.0.0.1:7701")
    both = with_switches_of(now, before)
    assert (both.switches, both.listen) == (now.switches, before.listen)


def test_what_ports_carry_is_by_number_where_a_switch_has_gone(running: Running) -> None:
    """Numbers of switches have holes then."""
    running.job(1)
    running.loop.call(running.controller.reports.ports.__getitem__, (7, 3))
    status = running.loop.run(status_of(running.jobs, running.controller.inventory, 1.0))
    watch = Watch(running.controller.status, running.controller.reports.ports)
    watch.look(status, 1000.0)
    lines = [sample.labels for one in Metrics(lambda: watch.last_view).collect() for sample in one.samples]
    assert all(labels.get("port") != "3" for labels in lines)
    wait_until(lambda: running.used() == 4, "slots")
