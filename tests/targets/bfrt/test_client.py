# SPDX-License-Identifier: Apache-2.0
"""The client of BF Runtime: what it says, and what it makes of errors and of a server that goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import grpc
import pytest

from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.bfrt import client as client_module
from p4reduce_targets.bfrt.client import BfrtError, BfrtLost, BindRefused, Client, ReadRefused, UpdateError
from tests.support.bfrt.server import Server
from tests.support.waiting import wait_until
from tests.targets.bfrt import made_up

CONFIG = made_up.CONFIG
OUTCOMES = 3  # a table of the made-up program
EXISTS = UpdateError(
    grpc.StatusCode.INVALID_ARGUMENT, "Table Entry modify failed table:pipe.Ingress.outcomes Invalid arguments"
)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(made_up.device()) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """Return a client that is bound."""
    client = Client(server.address, timeout_s=5)
    client.bind(CONFIG.p4_name)
    yield client
    client.close()


def cell(index: int) -> pb.TableEntry:
    """Return a cell of a counter with 17 cells."""
    key = pb.KeyField(field_id=65556, exact=pb.KeyField.Exact(value=index.to_bytes(4, "big")))
    return pb.TableEntry(table_id=OUTCOMES, key=pb.TableKey(fields=[key]))


def updates(*indices: int) -> list[pb.Update]:
    fields = [pb.DataField(field_id=number, stream=bytes(8)) for number in (65553, 65554)]
    made = []
    for index in indices:
        entry = cell(index)
        entry.data.fields.extend(fields)
        made.append(pb.Update(type=pb.Update.MODIFY, entity=pb.Entity(table_entry=entry)))
    return made


def test_subscribes_with_a_number_that_fits_in_24_bits_and_is_not_0(server: Server, client: Client) -> None:
    assert server.clients == {client.client_id: CONFIG.p4_name}
    assert 0 < client.client_id < 1 << 24


def test_tries_other_numbers_while_they_are_taken(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_CLIENT_IDS", range(1, 4))
    monkeypatch.setattr(client_module, "_ID_ATTEMPTS", 3)
    clients = [Client(server.address, timeout_s=5) for _ in range(3)]
    assert sorted(client.client_id for client in clients) == [1, 2, 3]
    with pytest.raises(BfrtLost, match="3 random client numbers are all taken"):
        Client(server.address, timeout_s=5)
    for client in clients:
        client.close()


def test_names_the_server_that_is_not_there(server: Server) -> None:
    server.stop()
    with pytest.raises(BfrtLost, match=rf"BF Runtime server at {server.address}: connection refused; check that bf_sw"):
        Client(server.address, timeout_s=5)


def test_a_server_that_does_not_answer_at_first(server: Server) -> None:
    server.faults.hang.set()
    with pytest.raises(BfrtLost, match=r"no answer in 0\.2 s; check that bf_switchd runs there, and is not stopped"):
        Client(server.address, timeout_s=0.2)


def test_running_leaves_out_the_name_for_no_program(server: Server) -> None:
    server.restart()
    client = Client(server.address, timeout_s=5)
    found = client.running()
    assert not found.config
    assert b"$pre.mgid" in found.non_p4_config.bfruntime_info
    client.install(CONFIG)
    assert list(client.running().config) == [CONFIG]
    client.bind(CONFIG.p4_name)
    assert server.clients == {client.client_id: CONFIG.p4_name}
    assert client.lost is None
    client.close()


def test_a_refused_installation_has_the_servers_words(server: Server) -> None:
    client = Client(server.address, timeout_s=5)
    server.faults.refuse_install = True
    with pytest.raises(BfrtError, match="SetForwardingPipelineConfig: Failed to find p4 program"):
        client.install(CONFIG)
    client.close()


def test_names_the_client_that_is_bound(server: Server, client: Client) -> None:
    other = Client(server.address, timeout_s=5)
    with pytest.raises(
        BindRefused, match=f"client {client.client_id} of the BF Runtime server at .* is bound"
    ) as caught:
        other.bind(CONFIG.p4_name)
    assert caught.value.holder == client.client_id
    client.close()
    other.bind(CONFIG.p4_name)
    other.close()


def test_a_refused_bind_of_another_kind_has_the_servers_words(server: Server) -> None:
    client = Client(server.address, timeout_s=5)
    with pytest.raises(BfrtError, match="Failed to find BfRtInfo for program other Object not found") as caught:
        client.bind("other")
    assert not isinstance(caught.value, BindRefused)
    assert client.lost is None
    client.close()


def test_the_errors_of_a_batch_are_found_at_their_updates(client: Client) -> None:
    """The server's list ends with the last error."""
    assert client.write(updates(0, 16)) == [None, None]
    assert client.write(updates(0, 17, 1, 18, 2, 3)) == [None, EXISTS, None, EXISTS, None, None]
    assert str(EXISTS).endswith("Invalid arguments (INVALID_ARGUMENT)")


def test_calls_are_for_the_device_and_all_its_pipes(client: Client) -> None:
    """The server refuses another device in the call, and a single pipe in each update."""
    with suppress(BfrtLost):
        assert client.write(updates(0)) == [None]
    assert client.lost is None


def test_many_errors_of_one_batch_come_through(client: Client) -> None:
    """By default, gRPC takes no more than some kilobytes of metadata."""
    many = client_module._MOST_PER_CALL
    assert client.write(updates(*[17] * many)) == [EXISTS] * many


def test_a_large_batch_is_more_than_one_call(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_MOST_PER_CALL", 4)
    server.calls.clear()
    assert client.write(updates(0, 1, 2, 3, 4, 17, 6, 7, 17)) == [None] * 5 + [EXISTS] + [None] * 2 + [EXISTS]
    assert server.calls == ["write"] * 3


def test_a_call_without_errors_of_its_updates_ends_the_connection(server: Server) -> None:
    """Nobody knows then which updates were done."""
    client = Client(server.address, timeout_s=5)
    with pytest.raises(BfrtLost, match=r"Write: Unable to get bound_program Unexpected error \(UNKNOWN\)"):
        client.write(updates(0))
    client.close()


def test_reads(client: Client) -> None:
    client.write(updates(16))
    found = client.read([cell(16), cell(0)])
    assert [entry.key for entry in found] == [cell(16).key, cell(0).key]
    assert [len(entry.data.fields) for entry in found] == [2, 2]
    assert len(client.read([pb.TableEntry(table_id=OUTCOMES)])) == 17
    assert client.read([]) == []


def test_a_refused_read_says_which_entry(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_MOST_PER_CALL", 3)
    text = r"1 of 5 entries: Entry not found in table:pipe\.Ingress\.outcomes Invalid arguments"
    with pytest.raises(ReadRefused, match=text) as caught:
        client.read([cell(0), cell(17), cell(1), cell(2), cell(3)])
    code = grpc.StatusCode.INVALID_ARGUMENT
    assert [error and error.code for error in caught.value.errors] == [None, code, None, None, None]
    assert client.lost is None


def test_a_call_during_an_installation_ends_the_connection(server: Server) -> None:
    client = Client(server.address, timeout_s=5)
    server.installing = True
    with pytest.raises(BfrtLost, match="Write: Failed to acquire read lock"):
        client.write(updates(0))
    with pytest.raises(BfrtLost, match="Write: Failed to acquire read lock"):
        client.running()
    wait_until(lambda: not server.clients, "the server to miss the client")
    client.close()
    assert "Write: Failed to acquire read lock" in str(client.lost), "the first reason stays"


def test_a_server_that_does_not_answer_is_lost_at_the_deadline(server: Server) -> None:
    client = Client(server.address, timeout_s=5)
    client._timeout_s = 0.3
    server.faults.hang.set()
    begun = time.monotonic()
    with pytest.raises(BfrtLost, match="Write: no answer in time"):
        client.write(updates(0))
    assert time.monotonic() - begun < 5
    assert client.lost is not None
    client.close()


def test_threads_that_wait_for_their_turn_see_the_loss(server: Server) -> None:
    client = Client(server.address, timeout_s=5)
    client._timeout_s = 0.5
    server.faults.hang.set()
    errors: list[str] = []

    def write() -> None:
        try:
            client.write(updates(0))
        except BfrtLost as error:
            errors.append(str(error))

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert errors == [client.lost] * 8
    client.close()


def test_the_end_of_the_stream_ends_the_connection(server: Server) -> None:
    client = Client(server.address, timeout_s=5)
    server.end_streams()
    wait_until(lambda: client.lost is not None, "the loss")
    assert client.lost == f"BF Runtime server at {server.address}: the connection was closed"
    client.close()


def test_the_death_of_the_server_ends_the_connection(server: Server) -> None:
    client = Client(server.address, timeout_s=5)
    server.stop()
    wait_until(lambda: client.lost is not None, "the loss")
    client.close()


def test_death_within_a_batch(server: Server, client: Client) -> None:
    server.faults.die_after = 2
    with pytest.raises(BfrtLost):
        client.write(updates(0, 1, 2))
    assert client.lost is not None


def test_an_installation_by_another_client_ends_the_connection(server: Server, client: Client) -> None:
    """All entries are gone then, although the server keeps the client bound."""
    other = Client(server.address, timeout_s=5)
    other.install(CONFIG)
    wait_until(lambda: client.lost is not None, "the loss")
    assert "another client of the BF Runtime server" in str(client.lost)
    assert other.lost is None
    other.close()


def test_close_unsubscribes_the_client_and_ends_its_calls(server: Server) -> None:
    client = Client(server.address, timeout_s=5)
    client.close()
    assert not server.clients
    with pytest.raises(BfrtLost, match="was closed"):
        client.write(updates(0))
    client.close()


def test_an_end_before_the_subscription_closes_the_client(server: Server) -> None:
    ended = threading.Event()
    ended.set()
    for _ in range(10):  # a thread closes the client, before its stream or after
        with pytest.raises(BfrtLost, match="was closed"):
            Client(server.address, timeout_s=5, ended=ended)
    wait_until(lambda: not server.clients, "no client")


def test_calls_of_one_client_do_not_overlap(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gives a client one session, in which batches must not overlap."""
    inside, most = 0, 0
    plain = server._update

    def update(*arguments: object) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.01)
        plain(*arguments)  # type: ignore[arg-type]
        inside -= 1

    monkeypatch.setattr(server, "_update", update)
    server.device.lock = threading.Semaphore(8)  # type: ignore[assignment]  # calls would wait for each other at it
    threads = [threading.Thread(target=client.write, args=(updates(0),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == 1
