# SPDX-License-Identifier: Apache-2.0
"""The tests' BF Runtime server answers as the SDE's sources say: the faults that tests ask it for.

Each test names the function of `bf-drivers/src` where a reader would not find it at once.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.support.bfrt import bfruntime_pb2 as bfrt
from tests.support.bfrt import programs
from tests.support.bfrt.plain_client import PlainClient
from tests.support.bfrt.server import Server
from tests.support.waiting import wait_until

from .entries import (
    MACS,
    PROFILE,
    connect,
    mac,
    refusal,
)

pytestmark = pytest.mark.p4c


def test_hanging(server: Server, client: PlainClient) -> None:
    server.faults.hang.set()
    with pytest.raises(grpc.RpcError) as error:
        client._channel.unary_unary("/bfrt_proto.BfRuntime/Write")(b"", timeout=0.2)
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # type: ignore[attr-defined]
    server.faults.hang.clear()
    assert client.write(("INSERT", mac(client, 5, 4))) == [""]


def test_a_slow_answer(server: Server, client: PlainClient) -> None:
    server.faults.slow_s = 0.2
    start = time.monotonic()
    client.write(("INSERT", mac(client, 5, 4)))
    assert time.monotonic() - start >= 0.2


def test_the_end_of_the_stream(server: Server, client: PlainClient) -> None:
    server.end_streams()
    assert client.ended.wait(20)
    assert client.end is grpc.StatusCode.CANCELLED
    wait_until(lambda: server.clients == {}, "the client is gone")


def test_death_within_a_batch(server: Server, client: PlainClient) -> None:
    server.faults.die_after = 2
    with pytest.raises(grpc.RpcError) as error:
        client.write(*(("INSERT", mac(client, address, 4)) for address in range(4)))
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
    assert client.ended.wait(20)
    assert len(server.device.plane._tables[MACS.removeprefix("pipe.")]) == 2  # type: ignore[attr-defined]
    server.faults.die_after = None
    address = server.address
    server.restart(programs.device_config(PROFILE))
    assert server.address == address
    with connect(server) as again:
        again.subscribe()
        again.bind()
        assert len(again.read(again.entry(MACS))) == 1  # the default entry


def test_an_installation_that_fails(server: Server, client: PlainClient) -> None:
    """The device has no program at all then, and the answer is that of the next step (`refreshConnections`)."""
    server.faults.refuse_install = True
    with pytest.raises(grpc.RpcError) as error:
        client.set_config([programs.device_config(PROFILE)], "VERIFY_AND_WARM_INIT_BEGIN_AND_END")
    assert refusal(error) == "NOT_FOUND Failed to find p4 program for device 0 Object not found"
    assert list(client.config().config) == []
    server.faults.refuse_install = False
    client.set_config([programs.device_config(PROFILE)], "VERIFY_AND_WARM_INIT_BEGIN_AND_END")
    assert len(client.config().config) == 1


def test_calls_during_an_installation(server: Server, client: PlainClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of the lock do not wait for the writer (`SetFwdConfigLockGuard`)."""
    may_end, replace = threading.Event(), server._replace

    def wait_and_replace(config: bfrt.ForwardingPipelineConfig) -> None:
        may_end.wait(20)
        replace(config)

    monkeypatch.setattr(server, "_replace", wait_and_replace)
    config = [programs.device_config(PROFILE)]
    with connect(server, number=8) as other, ThreadPoolExecutor() as pool:
        installed = pool.submit(other.set_config, config, "VERIFY_AND_WARM_INIT_BEGIN_AND_END")
        wait_until(lambda: server.installing, "the installation has begun")
        with pytest.raises(grpc.RpcError) as error:
            client.write(("INSERT", mac(client, 5, 4)))
        assert refusal(error) == "UNAVAILABLE Failed to acquire read lock for client 7 In use"
        may_end.set()
        installed.result()
    assert client.write(("INSERT", mac(client, 5, 4))) == [""]
