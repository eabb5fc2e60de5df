# SPDX-License-Identifier: Apache-2.0
"""The client of BF Runtime: what it says, and what it makes of errors and of a server that goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.bfrt import client as client_module
from p4reduce_targets.bfrt.client import BfrtError, BfrtLost, BindRefused, Client, ReadRefused, UpdateError
from tests.support.waiting import wait_until
from tests.targets.bfrt.fake_server import FakeServer, Rpc

CONFIG = pb.ForwardingPipelineConfig(
    p4_name="p4reduce",
    bfruntime_info=b"{}",
    profiles=[pb.ForwardingPipelineConfig.Profile(profile_name="pipe", context=b"{}", binary=b"1")],
)
EXISTS = (grpc.StatusCode.ALREADY_EXISTS, "Table Add failed table:pipe.t Already exists")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    client = Client(server.address, timeout_s=5)
    yield client
    client.close()


def updates(number: int) -> list[pb.Update]:
    return [
        pb.Update(type=pb.Update.INSERT, entity=pb.Entity(table_entry=pb.TableEntry(table_id=at + 1)))
        for at in range(number)
    ]


def test_subscribes_with_a_number_that_fits_in_24_bits_and_is_not_0(server: FakeServer, client: Client) -> None:
    assert [request.client_id for request in server.requests] == [client.client_id]
    assert 0 < client.client_id < 1 << 24


def test_tries_other_numbers_while_they_are_taken(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_CLIENT_IDS", range(1, 17))
    server.taken = set(range(1, 17)) - {9}
    client = Client(server.address, timeout_s=5)
    assert client.client_id == 9
    client.close()


def test_says_so_if_all_numbers_are_taken(server: FakeServer) -> None:
    server.takes_none = True
    with pytest.raises(BfrtLost, match="client numbers are all taken"):
        Client(server.address, timeout_s=5)


def test_names_the_server_that_is_not_there(server: FakeServer) -> None:
    server.close()
    with pytest.raises(BfrtLost, match=rf"BF Runtime server at {server.address}: connection refused; check that bf_sw"):
        Client(server.address, timeout_s=5)


def test_the_failure_to_connect_is_raised_alone(server: FakeServer) -> None:
    server.close()
    lost: list[str] = []
    with pytest.raises(BfrtLost):
        Client(server.address, timeout_s=5, on_lost=lost.append)
    assert lost == []


def test_running_leaves_out_the_name_for_no_program(server: FakeServer, client: Client) -> None:
    server.running.config.add(p4_name="$SHARED", bfruntime_info=b"fixed")
    server.running.non_p4_config.bfruntime_info = b"fixed"
    found = client.running()
    assert not found.config
    assert found.non_p4_config.bfruntime_info == b"fixed"
    server.running.config[0].CopyFrom(CONFIG)
    assert client.running().config[0] == CONFIG


def test_installs_and_binds(server: FakeServer, client: Client) -> None:
    client.install(CONFIG)
    client.bind("p4reduce")
    _, install, bind = server.requests
    assert install.action == install.VERIFY_AND_WARM_INIT_BEGIN_AND_END
    assert list(install.config) == [CONFIG]
    assert bind.action == bind.BIND
    assert [config.p4_name for config in bind.config] == ["p4reduce"]
    assert client.lost is None


def test_names_the_client_that_is_bound(server: FakeServer, client: Client) -> None:
    said = f"Client ID {client.client_id} trying to bind but Client ID -7 already owns this P4 Already exists"
    server.bind_refusal = Rpc(grpc.StatusCode.ALREADY_EXISTS, said)
    with pytest.raises(BindRefused, match="client 4294967289 of the BF Runtime server at") as caught:
        client.bind("p4reduce")
    assert caught.value.holder == 2**32 - 7
    assert client.lost is None


def test_a_refused_bind_of_another_kind_has_the_servers_words(server: FakeServer, client: Client) -> None:
    server.bind_refusal = Rpc(grpc.StatusCode.NOT_FOUND, "Failed to find BfRtInfo for program p4reduce")
    with pytest.raises(BfrtError, match="Failed to find BfRtInfo") as caught:
        client.bind("p4reduce")
    assert not isinstance(caught.value, BindRefused)


def test_writes_to_all_pipes_of_the_device(server: FakeServer) -> None:
    client = Client(server.address, device_id=3, timeout_s=5)
    assert client.write(updates(2)) == [None, None]
    request = server.requests[-1]
    assert request.target == pb.TargetDevice(device_id=3, pipe_id=0xFFFF, direction=0xFF, prsr_id=0xFF)
    assert request.client_id == client.client_id
    assert list(request.updates) == updates(2)
    assert request.atomicity == request.CONTINUE_ON_ERROR
    client.close()


def test_the_errors_of_a_batch_are_found_at_their_updates(server: FakeServer, client: Client) -> None:
    """The server's list ends with the last error."""
    server.write_refusals = [Rpc(grpc.StatusCode.UNKNOWN, "Write Error Status", [None, EXISTS, None, EXISTS])]
    error = UpdateError(*EXISTS)
    assert client.write(updates(6)) == [None, error, None, error, None, None]
    assert str(error) == "Table Add failed table:pipe.t Already exists (ALREADY_EXISTS)"


def test_many_errors_of_one_batch_come_through(server: FakeServer, client: Client) -> None:
    """By default, gRPC takes no more than some kilobytes of metadata."""
    many = client_module._BATCH
    server.write_refusals = [Rpc(grpc.StatusCode.UNKNOWN, "Write Error Status", [EXISTS] * many)]
    assert client.write(updates(many)) == [UpdateError(*EXISTS)] * many


def test_a_large_batch_is_more_than_one_call(
    server: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_BATCH", 4)
    server.write_refusals = [None, Rpc(grpc.StatusCode.UNKNOWN, "Write Error Status", [None, EXISTS]), None]
    assert client.write(updates(9)) == [None] * 5 + [UpdateError(*EXISTS)] + [None] * 3
    assert [len(request.updates) for request in server.requests[1:]] == [4, 4, 1]


def test_a_write_that_is_refused_as_a_whole_ends_the_connection(server: FakeServer, client: Client) -> None:
    server.write_refusals = [Rpc(grpc.StatusCode.UNKNOWN, "Unable to get bound_program Unexpected error")]
    with pytest.raises(BfrtLost, match=r"Write: Unable to get bound_program Unexpected error \(UNKNOWN\)"):
        client.write(updates(1))
    assert client.lost is not None


def test_reads(server: FakeServer, client: Client) -> None:
    entries = [pb.TableEntry(table_id=at) for at in (1, 2)]
    server.reads = [pb.ReadResponse(entities=[pb.Entity(table_entry=entry) for entry in entries])]
    assert client.read(entries) == entries
    assert [entity.table_entry for entity in server.requests[-1].entities] == entries


def test_a_refused_read_says_which_entry(server: FakeServer, client: Client) -> None:
    missing = (grpc.StatusCode.NOT_FOUND, "Entry not found in table:pipe.t Object not found")
    server.reads = [pb.ReadResponse(entities=[pb.Entity()])]
    server.read_refusals = [Rpc(grpc.StatusCode.UNKNOWN, "Read Error Status", [None, missing])]
    with pytest.raises(ReadRefused, match=r"1 of 2 entries: Entry not found in table:pipe\.t") as caught:
        client.read([pb.TableEntry(table_id=at) for at in (1, 2)])
    assert [error and error.code for error in caught.value.errors] == [None, grpc.StatusCode.NOT_FOUND]


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
def test_a_call_that_ends_so_ends_the_connection(server: FakeServer, code: grpc.StatusCode) -> None:
    lost: list[str] = []
    client = Client(server.address, timeout_s=5, on_lost=lost.append)
    server.write_refusals = [Rpc(code, "Failed to acquire read lock for client 7 In use")]
    with pytest.raises(BfrtLost, match="Write: Failed to acquire read lock"):
        client.write(updates(1))
    assert lost == [client.lost]
    with pytest.raises(BfrtLost, match="Write: Failed to acquire read lock"):
        client.running()
    assert server.gone.wait(5), "the server still has the client"
    client.close()
    assert len(lost) == 1


def test_a_server_that_does_not_answer_is_lost_at_the_deadline(server: FakeServer) -> None:
    lost: list[str] = []
    client = Client(server.address, timeout_s=0.3, on_lost=lost.append)
    server.hangs.set()
    begun = time.monotonic()
    with pytest.raises(BfrtLost, match="Write: no answer in time"):
        client.write(updates(1))
    assert time.monotonic() - begun < 5
    assert lost == [client.lost]
    client.close()


def test_threads_that_wait_for_their_turn_see_the_loss(server: FakeServer) -> None:
    client = Client(server.address, timeout_s=0.5)
    server.hangs.set()
    errors: list[BaseException] = []

    def write() -> None:
        try:
            client.write(updates(1))
        except BfrtLost as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(errors) == 8
    assert len({str(error) for error in errors}) == 1
    client.close()


def test_the_end_of_the_stream_ends_the_connection(server: FakeServer) -> None:
    lost: list[str] = []
    client = Client(server.address, timeout_s=5, on_lost=lost.append)
    server.kick()
    wait_until(lambda: client.lost is not None, "the loss")
    assert client.lost == f"BF Runtime server at {server.address}: it ended the connection"
    assert lost == [client.lost]
    client.close()


def test_the_death_of_the_server_ends_the_connection(server: FakeServer) -> None:
    client = Client(server.address, timeout_s=5)
    server.close()
    wait_until(lambda: client.lost is not None, "the loss")
    client.close()


def test_an_installation_by_another_client_ends_the_connection(server: FakeServer, client: Client) -> None:
    """All entries are gone then, although the server says nothing else."""
    server.tell(pb.WARM_INIT_STARTED)
    wait_until(lambda: client.lost is not None, "the loss")
    assert "another client of the BF Runtime server" in str(client.lost)


def test_close_unsubscribes_and_is_no_loss(server: FakeServer) -> None:
    lost: list[str] = []
    client = Client(server.address, timeout_s=5, on_lost=lost.append)
    client.close()
    assert server.gone.is_set()
    assert lost == []
    with pytest.raises(BfrtLost, match="was closed"):
        client.write(updates(1))
    client.close()


def test_calls_of_one_client_do_not_overlap(server: FakeServer, client: Client) -> None:
    """The server gives a client one session, in which batches must not overlap."""
    inside, most = 0, 0
    lock = threading.Lock()
    plain = server._wait

    def wait() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.01)
        plain()
        with lock:
            inside -= 1

    server._wait = wait  # type: ignore[method-assign]
    threads = [threading.Thread(target=client.write, args=(updates(1),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == 1
