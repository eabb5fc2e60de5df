# SPDX-License-Identifier: Apache-2.0
"""Users of a service: what each may, how fast, and what is written of it."""

from __future__ import annotations

import io
import json
import stat
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import grpc
import pytest
from rich.console import Console

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.client import Session
from p4reduce.errors import JoinError, SlotsExhausted
from p4reduce_controller.base.limits import BURST_S, Bucket
from p4reduce_controller.commands.views import show
from p4reduce_controller.tenants.access import ANYONE, METHODS
from p4reduce_controller.tenants.audit import REFUSALS_PER_S, Audit
from p4reduce_controller.tenants.users import digest
from tests.support.controller.multi_tenant import USERS, MultiTenantService, refused, refused_or_none
from tests.support.controller.ranks import ready
from tests.support.controller.running import Running, Starter, advance, leave
from tests.support.controller.users import JWT, Provider
from tests.support.waiting import stays, wait_until


@pytest.fixture
def service(start: Starter, tmp_path: Path) -> MultiTenantService:
    return start(MultiTenantService, tmp_path)


def test_each_tenants_jobs_are_its_own(service: MultiTenantService) -> None:
    alices = [service.rank(rank, 2, token="a") for rank in range(2)]
    bobs = [service.rank(rank, 2, token="b") for rank in range(2)]
    ready([*alices, *bobs])
    assert {(job.tenant, job.name) for job in service.status("o").jobs} == {("alice", "job"), ("bob", "job")}
    assert {job.tenant for job in service.status("b").jobs} == {"bob"}
    assert {job.tenant for job in service.status("v").jobs} == {"alice"}
    assert refused(lambda: service.end("b", "job", "alice"))[0] is grpc.StatusCode.NOT_FOUND
    assert service.end("b", "job") == "bob"
    wait_until(lambda: all(rank.aborted_at for rank in bobs), "bob's ranks to hear of it")
    ended = bobs[0].session.aborted
    assert (ended.reason, str(ended)) == ("ENDED_BY_USER", "job 'job': was ended by bob: enough")
    assert [rank.session.aborted for rank in alices] == [None, None]
    leave(service, alices)


def test_what_a_role_may_not(service: MultiTenantService) -> None:
    unauthenticated, denied = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
    assert refused(lambda: service.status(None)) == (unauthenticated, "a token is needed")
    assert refused(lambda: service.status("x")) == (unauthenticated, "the token is wrong")
    said = "SetLoss is for the role operator, and 'alice' is a user"
    assert refused(lambda: service.lose("a")) == (denied, said)
    assert refused(lambda: service.end("v", "job"))[0] is denied
    error = service.rank(0, 1, token="v").outcome()
    assert isinstance(error, JoinError)
    assert "Session is for the role user, and 'vera' is a viewer" in str(error)
    assert service.switch.loss_rates == {}
    service.lose("o")
    assert service.switch.loss_rates


def test_a_method_that_nobody_has_thought_of_is_the_operators(
    service: MultiTenantService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(METHODS, "Status")
    assert refused(lambda: service.status("b"))[0] is grpc.StatusCode.PERMISSION_DENIED
    assert service.status("o").switches


def test_floods_are_the_floods_own_trouble(start: Starter, tmp_path: Path) -> None:
    """A flood of status calls, of joins or of connected ranks is limited, and other users go on at their pace."""
    service = start(MultiTenantService, tmp_path, slots=64)
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    bobs = service.job(2, token="b")
    codes = [refused_or_none(lambda: service.status("a")) for _ in range(20)]
    assert codes.count(exhausted) >= 10
    assert "bob" in str(service.status("b").jobs)
    flood = [service.rank(0, 1, token="c", job=str(number), slots=1) for number in range(40)]
    limited = [one for one in flood if "starts ranks more than 0.04 times a second" in str(one.outcome())]
    assert 20 <= len(limited) <= 38
    held = [service.rank(rank, 99, token="a", slots=1) for rank in range(9)]
    wait_until(lambda: all(rank.assigned or rank.error for rank in held), "answers to all")
    full = [rank for rank in held if rank.error]
    assert len(full) == 4
    assert "'alice' has 5 ranks connected, which is its limit" in str(full[0].error)
    tenants = {tenant.name: tenant for tenant in service.status("o").tenants}
    assert tenants["alice"].refusals >= 8
    assert tenants["bob"].refusals == 0
    assert [rank.session.aborted for rank in bobs] == [None, None]
    began = time.monotonic()
    service.job(1, token="b", job="another")
    assert time.monotonic() - began < 10  # the time-out of joining


def test_messages_that_nobody_needs_wait_at_the_rank_that_sends_them(
    service: MultiTenantService, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: list[int] = []
    monkeypatch.setattr(service.jobs, "unanswered", lambda _, half, _now: handled.append(half))
    [rank] = service.job(1, token="b")
    for _ in range(5000):
        rank.session.ask(0)
    wait_until(lambda: handled, "the first questions")
    stays(lambda: len(handled) < 400, "messages beyond the limit are handled", 0.5)
    service.job(1, token="a")


def test_ranks_in_the_queue_are_told_their_place(service: MultiTenantService, caplog: pytest.LogCaptureFixture) -> None:
    [running] = service.job(1, token="b", slots=16)
    with Session(service.address, token="a") as session:
        joining = service.loop.loop.run_in_executor(None, lambda: session.join("next", 0, 1, slots=4, queue=60.0))
        said = "this rank waits for its turn in the queue, position 1 of 1: 4 slots asked, 0 of 16 free"
        wait_until(lambda: said in caplog.text, "it to be told its place")
        advance(service.loop, service.controller, 60.0)
        wait_until(joining.done, "its time to be up")
        with pytest.raises(SlotsExhausted) as error:
            joining.result()
    assert "in the queue, position 1 of 1: 4 slots asked, 0 of 16 free" in str(error.value)
    waiting = service.loop.loop.run_in_executor(None, lambda: joined(service, 30))
    wait_until(lambda: service.status("o").queue, "the queue")
    [queued] = service.status("o").queue
    assert (queued.tenant, queued.name, queued.place, queued.slots) == ("alice", "next", 1, 4)
    assert not service.status("b").queue
    shown = Console(record=True, width=160, file=io.StringIO())
    show(service.status("o"), shown)
    text = shown.export_text()
    for part in ("4 slots asked, 0 of 16 free", "0 of 2", "of bob"):
        assert part in text
    leave(service, [running])
    wait_until(waiting.done, "the job to be let in")
    assert waiting.result() == 4


def joined(service: MultiTenantService, queue: float) -> int:
    with Session(service.address, token="a") as session:
        return session.join("next", 0, 1, slots=4, queue=queue).slots


def test_what_is_written_of_it(service: MultiTenantService) -> None:
    [rank] = service.job(1, token="a")
    refused(lambda: service.lose("a"))
    refused(lambda: service.status("a secret that is wrong"))
    refused(lambda: service.end("b", "job", "alice"))
    service.end("o", "job", "alice")
    service.lose("o")
    wait_until(lambda: rank.aborted_at, "the end")
    said = [(one["who"], one["tenant"], one["what"], one["outcome"]) for one in service.audit]
    assert said == [
        ("alice", "alice", "job begun", "ok"),
        ("alice", "alice", "SetLoss", "SetLoss is for the role operator, and 'alice' is a user"),
        ("", "", "Status", "the token is wrong"),
        ("bob", "bob", "abort", "there is no job 'job'; the jobs are none"),
        ("alice", "alice", "job ended", "job 'job': was ended by olga: enough"),
        ("olga", "olga", "abort", "ok"),
        ("olga", "olga", "set loss", "ok"),
    ]
    assert all(one["time"].endswith("+00:00") for one in service.audit)
    text = service.log.read_text()
    assert "secret" not in text
    assert str(rank.assigned.abort_secret) not in text
    assert str(rank.assigned.hello_nonce) not in text
    assert stat.S_IMODE(service.log.stat().st_mode) == 0o600


def test_the_log_is_bounded_and_may_be_moved_away(tmp_path: Path) -> None:
    log = tmp_path / "other.jsonl"
    audit = Audit(log)
    for _ in range(1000):
        audit.note(ANYONE, "Status", "x" * 10_000, refused=True)
    lines = log.read_text().splitlines()
    assert len(lines) <= REFUSALS_PER_S * BURST_S + 5
    assert all(len(line) < 1000 for line in lines)
    log.rename(tmp_path / "other.jsonl.1")
    audit.note(ANYONE, "abort", "ok", peer="ipv6:%5Bfd00::1%5D:40000")
    [line] = log.read_text().splitlines()
    assert json.loads(line)["left_out_before"] > 800
    assert json.loads(line)["peer"] == "ipv6:[fd00::1]:40000"  # as the page names it
    audit.close()


def test_a_user_who_is_taken_out_is_let_in_no_more(service: MultiTenantService) -> None:
    service.job(1, token="b")
    service.users.write_text(USERS.replace(digest("b"), digest("new")))

    def is_out() -> bool:
        time.sleep(0.2)  # less often than bob's tenant may ask
        return refused_or_none(lambda: service.status("b")) is grpc.StatusCode.UNAUTHENTICATED

    wait_until(is_out, "the change")
    assert [job.tenant for job in service.status("new").jobs] == ["bob"]  # which runs on


def test_a_token_that_expires_lets_a_rank_come_back_and_no_one_join(
    start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Provider(tmp_path)
    service = start(MultiTenantService, tmp_path, f'{JWT}jwks = "jwks.json"', state=tmp_path / "state")
    token = provider.token(exp=time.time() + 600)
    [rank] = service.job(1, token=token)
    service.crash()

    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(seconds=700)

    monkeypatch.setattr("jwt.api_jwt.datetime", Later)
    service.start_again()
    valid = provider.token(exp=time.time() + 3600)
    wait_until(lambda: not any(m.away for j in service.status(valid).jobs for m in j.members), "it back")
    assert rank.session.aborted is None
    error = service.rank(0, 1, token=token, job="another").outcome()
    assert "the token has expired" in str(error)
    assert refused(lambda: service.status(token)) == (grpc.StatusCode.UNAUTHENTICATED, "the token has expired")
    leave(service, [rank])


def test_whose_jobs_are_and_what_was_used_survives_a_restart(start: Starter, tmp_path: Path) -> None:
    service = start(MultiTenantService, tmp_path, state=tmp_path / "state")
    service.job(2, token="b")

    def used() -> float:
        [bob] = [one for one in service.status("o").tenants if one.name == "bob"]
        assert (bob.jobs, bob.slots) == (1, 4)
        return bob.slot_hours

    before = wait_until(used, "slot-hours to be counted")
    service.crash()
    service.start_again()
    assert used() >= before
    assert [(job.tenant, job.user) for job in service.status("b").jobs] == [("bob", "bob")]
    assert refused(lambda: service.end("a", "job", "bob"))[0] is grpc.StatusCode.NOT_FOUND


def test_without_users_everyone_is_the_operator(running: Running) -> None:
    [rank] = running.job(1)
    assert running.ask("AbortJob", pb.AbortJobRequest(job="job")).tenant == ""
    assert running.ask("Status", pb.StatusRequest()).joins == 1
    wait_until(lambda: rank.aborted_at, "the end")
    assert str(rank.session.aborted) == "job 'job': was ended"


def test_a_bucket_gives_its_rate() -> None:
    bucket = Bucket(2.0, 100.0, burst_s=2.0)
    assert [bucket.take(100.0) for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert bucket.take(100.4) == pytest.approx(0.1)
    assert bucket.take(100.5) == 0
    assert [bucket.take(1000.0) > 0 for _ in range(5)] == [False] * 4 + [True]
    assert bucket.take(999.0) > 0
