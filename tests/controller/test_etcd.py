# SPDX-License-Identifier: Apache-2.0
"""The lease and the state in etcd: one controller at a time writes, and the next one finds what was written."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.etcd import client, state
from p4reduce_controller.etcd.client import Etcd, EtcdError, EtcdUnavailable
from p4reduce_controller.etcd.lease import Lease, holder
from p4reduce_controller.settings.settings import Settings, check_store
from p4reduce_controller.settings.texts import parse_store
from p4reduce_controller.store.state import StateError
from tests.support.certificates import self_signed
from tests.support.controller.fake_etcd import FakeEtcd
from tests.support.controller.jobs_harness import LEAF1, LEAF2
from tests.support.controller.standby import KEY, Controller, after, run, taken
from tests.support.etcd import Members


@pytest.fixture
def etcd() -> FakeEtcd:
    return FakeEtcd()


def beat(lease: Lease) -> None:
    """Renew the lease once, or learn that there is nothing to renew."""

    async def once() -> None:
        keeping = asyncio.ensure_future(lease.keep())
        await asyncio.wait([keeping], timeout=0.05)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    run(once())


class TestLease:
    def test_one_at_a_time_has_it(self, etcd: FakeEtcd) -> None:
        first = taken(etcd, "first")
        assert run(holder(etcd, KEY, 1.0)) == ("first", 1)
        second = Lease(etcd, KEY, etcd.clock)
        assert not run(second.campaign("second", 2))
        etcd.now += 1.9
        beat(first)
        etcd.now += 1.9
        assert not run(second.campaign("second", 2))
        assert not first.maybe_lost_leadership
        etcd.now += 0.2
        assert run(second.campaign("second", 2))
        assert second.term > first.term
        assert first.maybe_lost_leadership
        assert not first.lost.is_set()  # it has not heard yet
        beat(first)
        assert first.lost.is_set()
        assert "ran out" in first.why

    def test_who_is_in_doubt_knows_it_before_another_can_have_it(self, etcd: FakeEtcd) -> None:
        lease = taken(etcd)
        etcd.away = True
        etcd.now += 1.9
        beat(lease)
        assert not lease.maybe_lost_leadership
        etcd.now += 0.2
        beat(lease)
        assert "has not been renewed for 2.1 s: it is not connected" in str(lease.maybe_lost_leadership)
        assert not lease.lost.is_set()

    @pytest.mark.parametrize("how", ["ours", "revoked", "another's", "given back"])
    def test_whether_it_still_was_ours(self, etcd: FakeEtcd, how: str) -> None:
        """Etcd may have revoked it by itself, while it was renewed."""

        async def ask() -> None:
            lease, other = (Lease(etcd, KEY, etcd.clock) for _ in range(2))
            assert await lease.campaign("me", 2)
            etcd.away = True
            asking = asyncio.ensure_future(lease.is_ours())
            await asyncio.sleep(0.05)
            assert not asking.done()
            assert not lease.maybe_lost_leadership
            etcd.away = False
            if how in ("revoked", "another's"):
                await etcd.revoke(1)
            if how == "another's":
                assert await other.campaign("other", 2)
            if how == "given back":
                await lease.resign()
            for _ in range(2):
                assert await asking == (how == "ours")
                assert lease.lost.is_set() == (how != "ours")
                asking = asyncio.ensure_future(lease.is_ours())
            await asking

        run(ask())

    def test_given_back_it_is_free(self, etcd: FakeEtcd) -> None:
        lease = taken(etcd)
        run(lease.resign())
        assert lease.lost.is_set()
        assert run(holder(etcd, KEY, 1.0)) is None

    def test_an_answer_that_was_lost(self, etcd: FakeEtcd) -> None:
        """The call is made again, and finds that it was done."""
        ask = etcd.transact

        async def twice(request: Any) -> Any:
            await ask(request)
            return await ask(request)

        etcd.transact = twice  # type: ignore[method-assign]
        lease = taken(etcd)
        assert lease.term == etcd.keys[KEY].create_revision


@pytest.fixture
def one(etcd: FakeEtcd, tmp_path: Path) -> Controller:
    controller = Controller(etcd, tmp_path / "one")
    assert controller.load() == []
    controller.stored.job("a", LEAF1, LEAF2)
    controller.stored.job("b", LEAF1)
    controller.keep()
    return controller


class TestState:
    def test_the_next_one_finds_the_jobs(self, etcd: FakeEtcd, tmp_path: Path, one: Controller) -> None:
        found = after(etcd, tmp_path).load()
        assert [job.name for job in found] == ["a", "b"]
        mine = {job.name: job for job in one.stored.harness.jobs}
        for job in found:
            assert (job.number, job.generation, job.ranges) == (
                mine[job.name].number,
                mine[job.name].generation,
                mine[job.name].ranges,
            )
            assert all(member.session is None for member in job.members.values())

    def test_only_what_has_changed_is_written(self, etcd: FakeEtcd, one: Controller) -> None:
        written = len(etcd.transactions)
        one.keep()
        assert len(etcd.transactions) == written
        one.stored.job("c", LEAF2)
        one.keep()
        (last,) = etcd.transactions[written:]
        keys = [operation.request_put.key for operation in last.success]
        assert keys == [b"/p4reduce/state/jobs/3", b"/p4reduce/state/order"]

    def test_jobs_of_many_ranks_fit_into_requests(
        self, etcd: FakeEtcd, tmp_path: Path, one: Controller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(state, "_PLAIN_BYTES", 1000)
        monkeypatch.setattr(state, "_MOST_BYTES", 1)
        encoded, encode = [], state._encoded
        monkeypatch.setattr(state, "_encoded", lambda value: encoded.append(value) or encode(value))
        written = len(etcd.transactions)
        for name in ("c", "d"):
            one.stored.job(name, *[LEAF1, LEAF2] * 5)
        one.keep()
        more = etcd.transactions[written:]
        values = [operation.request_put.value for transaction in more for operation in transaction.success]
        assert sum(value.startswith(b"zlib ") for value in values) == 2
        assert len(more) == len(encoded) == 2
        assert [job.name for job in after(etcd, tmp_path).load()] == ["a", "b", "c", "d"]

    def test_what_is_over_is_not_found(self, etcd: FakeEtcd, tmp_path: Path, one: Controller) -> None:
        harness = one.stored.harness
        run(
            one.state.keep(
                lambda: [job for job in harness.jobs if job.name == "b"], harness.switches.children, harness.now
            )
        )
        assert [job.name for job in after(etcd, tmp_path).load()] == ["b"]

    def test_who_has_lost_the_lease_writes_nothing(self, etcd: FakeEtcd, tmp_path: Path, one: Controller) -> None:
        two = after(etcd, tmp_path)
        two.load()
        before = dict(etcd.keys)
        one.stored.job("late", LEAF1)
        with pytest.raises(StateError, match="does not serve any more: another controller holds it"):
            one.keep()
        assert etcd.keys == before
        assert one.lease.lost.is_set()
        with pytest.raises(StateError, match="does not serve any more"):
            one.keep()

    def test_a_write_whose_outcome_is_not_known_is_made_again(
        self, etcd: FakeEtcd, tmp_path: Path, one: Controller
    ) -> None:
        one.stored.job("c", LEAF2)
        etcd.deaf = True
        with pytest.raises(StateError, match="its answer was lost"):
            one.keep()
        etcd.deaf = False
        harness = one.stored.harness
        run(
            one.state.keep(
                lambda: [job for job in harness.jobs if job.name != "c"], harness.switches.children, harness.now
            )
        )
        assert [job.name for job in after(etcd, tmp_path).load()] == ["a", "b"]

    def test_a_write_that_a_member_does_late_changes_nothing(
        self, etcd: FakeEtcd, tmp_path: Path, one: Controller
    ) -> None:
        """The member was stopped before the write, and another one has done it at the second request."""
        for name in ("c", "d"):
            one.stored.job(name, LEAF2)
            one.keep()
        harness = one.stored.harness
        run(
            one.state.keep(
                lambda: [job for job in harness.jobs if job.name != "c"], harness.switches.children, harness.now
            )
        )
        for late in etcd.transactions[::-1]:
            run(etcd.transact(late))
        one.stored.job("e", LEAF2)
        run(
            one.state.keep(
                lambda: [job for job in harness.jobs if job.name != "c"], harness.switches.children, harness.now
            )
        )
        assert [job.name for job in after(etcd, tmp_path).load()] == ["a", "b", "d", "e"]

    @pytest.mark.parametrize("when", ["twice at once", "known later"])
    def test_a_write_that_is_done_twice_is_done(
        self, etcd: FakeEtcd, tmp_path: Path, one: Controller, when: str
    ) -> None:
        ask = etcd.transact

        async def twice(request: Any) -> Any:
            await ask(request)
            if when == "known later":
                etcd.transact = ask  # type: ignore[method-assign]
                raise EtcdUnavailable("its answer was lost")
            return await ask(request)

        etcd.transact = twice  # type: ignore[method-assign]
        one.stored.job("c", LEAF2)
        if when == "known later":
            with pytest.raises(StateError, match="its answer was lost"):
                one.keep()
        one.keep()
        one.stored.job("d", LEAF2)
        one.keep()
        assert [job.name for job in after(etcd, tmp_path).load()] == ["a", "b", "c", "d"]

    @pytest.mark.parametrize(
        ("key", "value", "said"),
        [
            ("site", {"version": 2}, "it has version 2, but this controller reads versions 3 and 4"),
            ("site", {"version": 5}, "it has version 5, but this controller reads versions 3 and 4"),
            ("jobs/1", {"name": 7}, "jobs\\[0\\]: "),
            ("jobs/1", [], "jobs/1: no object"),
        ],
    )
    def test_what_cannot_be_is_named(
        self, etcd: FakeEtcd, tmp_path: Path, one: Controller, key: str, value: object, said: str
    ) -> None:
        del one
        stored = etcd.keys[f"/p4reduce/state/{key}"]
        new = {**json.loads(stored.value), **value} if isinstance(value, dict) else value
        stored.value = json.dumps(new).encode()
        with pytest.raises(StateError, match=said) as error:
            after(etcd, tmp_path).load()
        assert "delete the keys below /p4reduce/state/ to start without its jobs" in str(error.value)


class TestSettings:
    def test_places(self) -> None:
        assert parse_store("etcd://a:1,b") == (["a:1", "b:2379"], "/p4reduce")
        assert parse_store("etcd://[0::1]:7/lab/one/") == (["[::1]:7"], "/lab/one")

    @pytest.mark.parametrize(
        "text", ["", "etcd:", "etcd://", "http://a:1", "etcd://a:x", "etcd://u:p@a:1", "etcd://a,a", "etcd://::1:2379"]
    )
    def test_what_is_no_place(self, text: str) -> None:
        with pytest.raises(SettingsError, match="must "):
            parse_store(text)

    def test_other_hosts_are_reached_by_tls(self) -> None:
        assert Settings(store="etcd://127.0.0.1:1").store_tls() is None
        assert Settings(store="etcd://10.0.0.1:1", store_insecure=True).store_tls() is None
        with pytest.raises(SettingsError, match="give --store-ca, or --store-insecure"):
            Settings(store="etcd://127.0.0.1:1,10.0.0.1:1").store_tls()
        for cert, key in (("c", ""), ("", "k"), ("c", "k")):
            with pytest.raises(SettingsError, match="--store-cert"):
                Settings(store="etcd://127.0.0.1:1", store_cert=cert, store_key=key).store_tls()

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"standby": True}, "--standby needs --store"),
            ({"store": "etcd://a", "state": "file"}, "give only one of them"),
            ({"store": "file"}, "must be etcd://"),
        ],
    )
    def test_what_does_not_go_together(self, settings: dict[str, Any], said: str) -> None:
        with pytest.raises(SettingsError, match=said):
            check_store(Settings(**settings))


# --- a real etcd -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    with closing(Members(tmp_path_factory.mktemp("etcd"))) as members:
        yield members


async def test_a_lease_is_one_controllers_until_it_runs_out(members: Members) -> None:
    etcd = Etcd(["127.0.0.1:9", *members.addresses])  # one does not listen
    second = Lease(etcd, KEY)
    for _ in range(10):  # a process that stands still for 2 s loses it
        first = Lease(etcd, KEY)
        while not await first.campaign("first", 2):
            await asyncio.sleep(0.1)
        keeping = asyncio.ensure_future(first.keep())
        await asyncio.sleep(3)
        if await first.is_ours():
            break
    found = await holder(etcd, KEY, 5.0)
    assert found[0] == "first"
    assert not first.maybe_lost_leadership
    assert not await second.campaign("second", 2)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    deadline = time.monotonic() + 20
    while await holder(etcd, KEY, 5.0) is not None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert first.maybe_lost_leadership  # before anybody can have it
    assert await second.campaign("second", 60)
    assert second.term > first.term
    assert await second.is_ours()
    await asyncio.wait_for(first.keep(), 10)
    assert first.lost.is_set()
    assert not await first.is_ours()
    await second.resign()
    assert await holder(etcd, KEY, 5.0) is None
    await etcd.revoke(12345)  # which is not there
    await etcd.close()


async def test_where_none_answers_it_is_said_in_time() -> None:
    etcd = Etcd(["127.0.0.1:9", "127.0.0.1:10"])
    began = time.monotonic()
    with pytest.raises(EtcdUnavailable, match=r"etcd does not answer \(127.0.0.1:9: .*; 127.0.0.1:10: "):
        await etcd.range(KEY, timeout=0.3)
    assert time.monotonic() - began < 5
    await etcd.close()


def test_tls_with_certificates_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ATTEMPT_TIMEOUT", 10.0)  # or else a busy machine hides what is wrong with TLS
    server, server_key = self_signed(tmp_path, "etcd", "IP:127.0.0.1")
    mine, my_key = self_signed(tmp_path, "controller")
    options = ["--cert-file", str(server), "--key-file", str(server_key)]
    options += ["--client-cert-auth", "--trusted-ca-file", str(mine)]
    with closing(Members(tmp_path, options=options, scheme="https")) as members:

        async def asked(ca: str, cert: str, key: str, within: float) -> None:
            store = f"etcd://{','.join(members.addresses)}"
            tls = Settings(store=store, store_cert=cert, store_key=key, store_ca=ca).store_tls()
            etcd = Etcd(members.addresses, tls)
            try:
                await etcd.range(KEY, timeout=within)
            finally:
                await etcd.close()

        asyncio.run(asked(str(server), str(mine), str(my_key), 30.0))
        for ca, cert, key, said in (
            (str(server), "", "", "--store-cert"),
            (str(mine), str(mine), str(my_key), "not signed by an authority that is trusted here; .* --store-ca"),
            ("", "", "", "if etcd uses TLS, give --store-ca"),
        ):
            with pytest.raises(EtcdError, match=said):
                asyncio.run(asked(ca, cert, key, 1.0))


@pytest.mark.slow
async def test_without_standby_one_that_finds_another_serving_says_so(members: Members) -> None:
    etcd = Etcd(members.addresses)
    lease = Lease(etcd, "/found/serving")
    assert await lease.campaign('{"host": "h", "listen": "127.0.0.1:1", "pid": 7}', 60)
    command = [sys.executable, "-m", "p4reduce", "controller", "--store", f"{members.url}/found"]
    command += ["--listen", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 1
    assert out == b""
    assert b"another controller serves, at 127.0.0.1:1 on h, process 7; give --standby" in errors
    process = await asyncio.create_subprocess_exec(*command, "--standby", stdout=subprocess.PIPE)
    line = await asyncio.wait_for(process.stdout.readline(), 60)
    assert line.startswith(b"standby listen=127.0.0.1:")
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 10) == 0
    await etcd.close()
