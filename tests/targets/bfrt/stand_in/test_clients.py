# SPDX-License-Identifier: Apache-2.0
"""The tests' BF Runtime server answers as the SDE's sources say: clients, bindings, and the running program.

Each test names the function of `bf-drivers/src` where a reader would not find it at once.
"""

from __future__ import annotations

import grpc
import pytest

from tests.support.bfrt import bfruntime_pb2 as bfrt
from tests.support.bfrt import programs
from tests.support.bfrt.plain_client import PlainClient
from tests.support.bfrt.schema import parse
from tests.support.bfrt.server import Server
from tests.support.waiting import wait_until

from .entries import MACS, PROFILE, connect, mac, port_entry, refusal

pytestmark = pytest.mark.p4c


def test_subscription(server: Server) -> None:
    with connect(server) as client:
        assert client.subscribe().subscribe.status.code == 0
        assert server.clients == {7: None}
        client.close_stream()
        assert client.end is grpc.StatusCode.OK
        wait_until(lambda: server.clients == {}, "the client is gone")


def test_a_client_id_that_is_taken(server: Server, client: PlainClient) -> None:
    """`BfRtServer::addConnection` refuses the second stream, and the first one stays."""
    with connect(server) as other, pytest.raises(AssertionError, match="INVALID_ARGUMENT Can't have two clients"):
        other.subscribe()
    assert not client.ended.is_set()
    assert client.write(("INSERT", mac(client, 1, 4))) == [""]


def test_a_stream_that_ends_before_it_subscribes_removes_client_0(server: Server) -> None:
    """`StreamChannel` calls `cleanupConnection` with the number that it has: 0."""
    with connect(server, number=0) as client, connect(server, number=9) as other:
        client.subscribe()
        other.open_stream()
        other.close_stream()
        wait_until(lambda: server.clients == {}, "client 0 is gone")


def test_one_client_to_a_program(server: Server, client: PlainClient) -> None:
    """`forwardingConfigBind` looks for the owner before it looks for the program."""
    with connect(server, number=1 << 31) as other:
        with pytest.raises(grpc.RpcError) as error:
            other.bind()
        assert refusal(error) == "UNAVAILABLE Unknown client. Client_id:-2147483648 Not ready"
        other.subscribe()
        with pytest.raises(grpc.RpcError) as error:
            other.bind()
        text = "Client ID -2147483648 trying to bind but Client ID 7 already owns this P4 Already exists"
        assert refusal(error) == f"ALREADY_EXISTS {text}"
        with pytest.raises(grpc.RpcError) as error:
            other.bind("another")
        assert refusal(error) == "NOT_FOUND Failed to find BfRtInfo for program another Object not found"
        with pytest.raises(grpc.RpcError) as error:
            other.set_config([], "BIND")
        assert refusal(error) == "INVALID_ARGUMENT Exactly one config message required. Invalid arguments"
        client.close_stream()
        wait_until(lambda: 7 not in server.clients, "the owner is gone")
        other.bind()


def test_calls_without_a_program(server: Server, client: PlainClient) -> None:
    """`getBfRtInfo` for subscribed clients, `getBfRtInfoIndependent` for others."""
    with connect(server, number=8) as other:
        with pytest.raises(grpc.RpcError) as error:
            other.write(("INSERT", mac(client, 1, 4)))
        assert refusal(error) == "NOT_FOUND Unable to obtain BF_RT info for () Object not found"
        other.subscribe()
        with pytest.raises(grpc.RpcError) as error:
            other.write(("INSERT", mac(client, 1, 4)))
        assert refusal(error) == "UNKNOWN Unable to get bound_program Unexpected error"
        with pytest.raises(grpc.RpcError) as error:
            other.read(client.entry(MACS))
        assert refusal(error) == "UNKNOWN Unable to get bound_program Unexpected error"
        with pytest.raises(grpc.RpcError) as error:
            client.write(("INSERT", mac(client, 1, 4)), device=1)
    text = "The device id retrieved for this client connection (0) does not match the device id 1 passed in"
    assert refusal(error) == f"INVALID_ARGUMENT {text} Invalid arguments"


def test_a_client_without_a_stream(server: Server, client: PlainClient) -> None:
    """It is there during its calls. After a call that is refused as a whole it stays, and can bind, for good."""
    entry = mac(client, 1, 4)
    with connect(server, number=8) as other:
        assert other.write(("INSERT", entry), name="p4reduce") == [""]
        with pytest.raises(grpc.RpcError) as error:
            other.bind("$SHARED")
        assert refusal(error) == "UNAVAILABLE Unknown client. Client_id:8 Not ready"
        with pytest.raises(grpc.RpcError):
            other.write(("INSERT", entry))
        client.close_stream()
        wait_until(lambda: server.clients == {}, "the owner is gone")
        other.bind()
    with connect(server, number=9) as next_one:
        next_one.subscribe()
        with pytest.raises(grpc.RpcError) as error:
            next_one.bind()
        assert refusal(error).startswith("ALREADY_EXISTS Client ID 9 trying to bind but Client ID 8 already owns")


def test_the_config_that_runs(client: PlainClient) -> None:
    answer = client.config()
    assert [config.p4_name for config in answer.config] == ["p4reduce"]
    assert answer.config[0] == programs.device_config(PROFILE)
    assert "$PORT" in {table.name for table in parse(answer.non_p4_config.bfruntime_info).values()}
    with pytest.raises(grpc.RpcError) as error:
        client.config(device=1)
    assert refusal(error) == "UNKNOWN Unexpected error in RPC handling"


def test_a_device_without_a_program(server: Server) -> None:
    """`BfRtDevMgrImpl::bfRtDeviceAdd` makes up the program $SHARED, which has the fixed tables alone."""
    server.restart()
    with connect(server) as client:
        (config,) = client.config().config
        assert (config.p4_name, list(config.profiles)) == ("$SHARED", [])
        client.subscribe()
        client.bind("$SHARED")
        (info,) = client.read(client.entry("$PORT_STR_INFO", {"$PORT_NAME": "3/0"}))
        assert client.values(info) == {"$DEV_PORT": 8}
        assert client.write(("INSERT", mac(client, 1, 4)))[0].startswith("NOT_FOUND Table not found for id ")


def test_installation(server: Server) -> None:
    """Installing empties all tables, tells all clients, and leaves those of other programs without their stream."""
    with connect(server, number=8) as watcher, connect(server) as client:
        watcher.subscribe()
        client.subscribe()
        client.bind()
        client.write(("INSERT", mac(client, 1, 4)), ("INSERT", port_entry(client, 0)))
        client.set_config([programs.device_config(PROFILE)], "VERIFY_AND_WARM_INIT_BEGIN_AND_END")
        for one in (client, watcher):
            kinds = [one.message().set_forwarding_pipeline_config_response for _ in range(2)]
            assert [kind.set_forwarding_pipeline_config_response_type for kind in kinds] == [0, 1]
        assert [entry for entry in client.read(client.entry(MACS)) if not entry.is_default_entry] == []
        assert client.read(client.entry("$PORT")) == []
        watcher.set_config([programs.device_config(PROFILE, "another")], "VERIFY_AND_WARM_INIT_BEGIN_AND_END")
        assert client.ended.wait(20)
        assert client.end is grpc.StatusCode.CANCELLED
        wait_until(lambda: server.clients == {8: None}, "the watcher alone is left, and is not bound")
        watcher.bind("another")


@pytest.mark.parametrize(
    ("change", "action", "answer"),
    [
        ({"pipe_scope": [0, 0]}, "VERIFY", "INVALID_ARGUMENT Invalid device config sent Invalid arguments"),
        ({"profile_name": "p" * 256}, "VERIFY", "INVALID_ARGUMENT Invalid device config sent Invalid arguments"),
        ({"pipe_scope": [0, 1]}, "VERIFY", None),
        (
            {},
            "RECONCILE_AND_WARM_INIT_END",
            "UNIMPLEMENTED Reconcile and warmInitEnd not supported Operation not supported",
        ),
    ],
)
def test_configs_that_are_refused(server: Server, change: dict[str, object], action: str, answer: str | None) -> None:
    """`DeviceForwardingConfig` checks a config; what is in it is looked at when the device is added."""
    config = bfrt.ForwardingPipelineConfig()
    config.CopyFrom(programs.device_config(PROFILE))
    config.profiles[0].MergeFrom(bfrt.ForwardingPipelineConfig.Profile(**change))  # type: ignore[arg-type]
    with connect(server) as client:
        client.subscribe()
        if answer is None:
            client.set_config([config], action)
        else:
            with pytest.raises(grpc.RpcError) as error:
                client.set_config([config], action)
            assert refusal(error) == answer
        client.bind()  # the program still runs
