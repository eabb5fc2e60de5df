# SPDX-License-Identifier: Apache-2.0
"""What the controller says to etcd, heard by a real one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from p4reduce_controller.etcd.client import Etcd, EtcdError, EtcdUnavailable
from p4reduce_controller.etcd.lease import Lease, holder
from p4reduce_controller.settings.settings import Settings
from tests.support.certificates import self_signed
from tests.support.etcd import Members

KEY = "/test/serving"


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    with closing(Members(tmp_path_factory.mktemp("etcd"))) as members:
        yield members


def test_a_lease_is_one_controllers_until_it_runs_out(members: Members) -> None:
    async def work() -> None:
        etcd = Etcd(["127.0.0.1:9", *members.addresses])  # one does not listen
        first, second = Lease(etcd, KEY), Lease(etcd, KEY)
        assert await first.take("first", 2)
        keeping = asyncio.ensure_future(first.keep())
        await asyncio.sleep(3)
        found = await holder(etcd, KEY, 5.0)
        assert found is not None
        assert found[0] == "first"
        assert not first.maybe_lost_leadership
        assert await first.is_ours()
        assert not await second.take("second", 2)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        deadline = time.monotonic() + 10
        while await holder(etcd, KEY, 5.0) is not None:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert first.maybe_lost_leadership  # before anybody can have it
        assert await second.take("second", 2)
        assert second.term > first.term
        assert await second.is_ours()
        await asyncio.wait_for(first.keep(), 10)
        assert first.lost.is_set()
        assert not await first.is_ours()
        await second.give_back()
        assert await holder(etcd, KEY, 5.0) is None
        await etcd.revoke(12345)  # which is not there
        await etcd.close()

    asyncio.run(work())


def test_where_none_answers_it_is_said_in_time() -> None:
    async def work() -> None:
        etcd = Etcd(["127.0.0.1:9", "127.0.0.1:10"])
        began = time.monotonic()
        with pytest.raises(EtcdUnavailable, match=r"etcd does not answer \(127.0.0.1:9: .*; 127.0.0.1:10: "):
            await etcd.range(KEY, within=0.3)
        assert time.monotonic() - began < 5
        await etcd.close()

    asyncio.run(work())


def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
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
                await etcd.range(KEY, within=within)
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
def test_without_standby_one_that_finds_another_serving_says_so(members: Members) -> None:
    async def work() -> None:
        etcd = Etcd(members.addresses)
        lease = Lease(etcd, "/found/serving")
        assert await lease.take('{"host": "h", "listen": "127.0.0.1:1", "pid": 7}', 60)
        command = [sys.executable, "-m", "p4reduce", "controller", "--store", f"{members.url}/found"]
        command += ["--listen", "127.0.0.1:0"]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, errors = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 1
        assert out == b""
        assert b"another controller serves, at 127.0.0.1:1 on h, process 7; give --standby" in errors
        process = await asyncio.create_subprocess_exec(*command, "--standby", stdout=subprocess.PIPE)
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert line.startswith(b"standby listen=127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10) == 0
        await etcd.close()

    asyncio.run(work())
