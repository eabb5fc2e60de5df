# SPDX-License-Identifier: Apache-2.0
"""Our server alone: how it begins and ends, and how it fares with busy or careless controllers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from finsy.proto import p4r
from grpc import StatusCode

from p4reduce_targets.dataplane import DataPlaneLost, PacketProcessor
from p4reduce_targets.p4runtime import Server, service
from p4reduce_targets.p4runtime.arbitration import (
    MAX_CONTROLLERS,
    MAX_QUEUED_ERRORS,
    MAX_QUEUED_MESSAGES,
    MAX_QUEUED_PACKET_INS,
    Arbitration,
    Controller,
)
from p4reduce_targets.p4runtime.bytestrings import decode
from p4reduce_targets.p4runtime.errors import Refused
from p4reduce_targets.p4runtime.service import P4RuntimeService
from p4reduce_targets.switch import Switch

from .client import (
    DELETE,
    INSERT,
    Client,
    Failed,
    Set,
    action,
    exact_entry,
    group_entry,
    lpm_entry,
    refused,
    ternary_entry,
)
from .fake_device import CPU_PORT, FakeDataPlane

FRAME = bytes(60)


@contextmanager
def serving(address: str = "127.0.0.1:0") -> Iterator[tuple[Switch, Server]]:
    with Switch(FakeDataPlane, [], CPU_PORT) as switch, Server(switch, address=address) as server:
        yield switch, server


def test_who_says_nothing_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as (_, server), ExitStack() as stack:
        primary = stack.enter_context(Client(server.address, 1))
        primary.become_primary()
        silent = [stack.enter_context(Client(server.address)) for _ in range(MAX_CONTROLLERS - 1)]
        with monkeypatch.context() as patch:  # not for those who say something
            patch.setattr(service, "FIRST_MESSAGE_TIMEOUT_S", 0.5)
            for one in silent:
                one.open()
            for one in silent:
                with refused(StatusCode.DEADLINE_EXCEEDED, r"no arbitration came within 0\.5 s"):
                    one.receive()
        with Client(server.address, 2) as other:
            other.become_primary()
        assert primary.standing() == (6, 2)  # one that has said who it is stays


def test_it_closes_at_once_with_controllers_connected() -> None:
    with serving() as (_, server), Client(server.address, 1) as one, Client(server.address, 2) as two:
        one.become_primary()
        two.become_primary()
        assert one.standing() == (6, 2)  # nothing is on its way any more
        before = time.monotonic()
        server.close()
        assert time.monotonic() - before < 5
        for client in (one, two):
            with pytest.raises(Failed) as failed:
                client.receive()
            assert failed.value.code in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)


def test_nothing_is_left_behind() -> None:
    before = set(threading.enumerate())
    with serving() as (_, server), Client(server.address) as client:
        client.become_primary().configure()
    deadline = time.monotonic() + 10
    while left := {one.name for one in set(threading.enumerate()) - before if one.name.startswith("p4runtime")}:
        assert time.monotonic() < deadline, left


def test_one_address_one_server() -> None:
    with serving() as (_, server), pytest.raises(OSError, match="cannot listen"), serving(server.address):
        pass


def test_a_unix_socket(tmp_path: Path) -> None:
    with serving(f"unix:{tmp_path}/grpc") as (_, server), Client(server.address) as client:
        client.become_primary().configure()


def test_a_controller_that_does_not_read_costs_no_memory() -> None:
    arbitration, controller = Arbitration(1), Controller()
    arbitration.join(controller)
    arbitration.update(controller, p4r.MasterArbitrationUpdate(device_id=1, election_id=p4r.Uint128(low=1)))
    for _ in range(MAX_QUEUED_PACKET_INS + 4):
        arbitration.queue_packet_in(p4r.PacketIn())
    assert controller.outbox.qsize() == MAX_QUEUED_PACKET_INS  # one of them is the notification
    assert arbitration.packets_lost == 5


def test_a_backup_that_does_not_read_costs_no_memory() -> None:
    """Nor does what it sends come back to it."""
    arbitration, backup = Arbitration(1), Controller()
    with Switch(FakeDataPlane, [], CPU_PORT) as switch:
        service = P4RuntimeService(switch, arbitration)
        arbitration.join(backup)
        request = p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=bytes(1 << 20)))
        request.packet.metadata.add(metadata_id=1, value=bytes(1 << 20))
        for _ in range(MAX_QUEUED_ERRORS + 100):
            service._handle(backup, request)
    with pytest.raises(Refused, match="a number of 8388608 bits does not fit within 9 bits"):
        decode(b"\xff" * (1 << 20), 9, "port")
    assert backup.outbox.qsize() == MAX_QUEUED_ERRORS
    for _ in range(MAX_QUEUED_ERRORS):
        message = backup.outbox.get()
        assert isinstance(message, p4r.StreamMessageResponse)
        assert message.error.canonical_code == 7
        assert message.ByteSize() < 200


def test_standings_that_nobody_reads_end_the_stream() -> None:
    arbitration, backup, restless = Arbitration(1), Controller(), Controller()
    for controller, number in ((backup, 1), (restless, 2)):
        arbitration.join(controller)
        arbitration.update(controller, p4r.MasterArbitrationUpdate(device_id=1, election_id=p4r.Uint128(low=number)))
    for number in range(MAX_QUEUED_MESSAGES + 100):
        other = p4r.MasterArbitrationUpdate(device_id=1, election_id=p4r.Uint128(low=3 + number))
        arbitration.update(restless, other)
        restless.outbox.get()
    messages = [backup.outbox.get() for _ in range(backup.outbox.qsize())]
    assert len(messages) == MAX_QUEUED_MESSAGES + 1
    assert isinstance(messages[-1], Refused)
    with pytest.raises(Refused, match="messages wait to be read"):
        arbitration.update(backup, p4r.MasterArbitrationUpdate(device_id=1, election_id=p4r.Uint128(low=1)))


def test_packet_ins_without_a_controller_are_lost() -> None:
    with serving() as (switch, server):
        with Client(server.address) as client:
            client.become_primary().configure()
        switch.on_packet_in(bytes(100))
        assert server.arbitration.packets_lost == 1


def test_packet_ins_too_short_for_their_header_are_lost() -> None:
    with serving() as (switch, server), Client(server.address) as client:
        client.become_primary().configure()
        switch.on_packet_in(b"abc")
        switch.on_packet_in(b"abcd")
        assert client.packet_in()[0] == b""


def test_a_program_that_p4info_does_not_belong_to() -> None:
    class Other(FakeDataPlane):
        def insert(self, table: str, *_: object) -> None:
            raise KeyError(f"the program has no table {table}")

    with (
        Switch(Other, [], CPU_PORT) as switch,
        Server(switch, address="127.0.0.1:0") as server,
        Client(server.address) as client,
    ):
        client.become_primary().configure()
        with pytest.raises(Failed) as failed:
            client.write(INSERT, exact_entry(1, action("forward", 1)))
        assert failed.value.codes == [2]
        assert "has no table" in failed.value.messages[0]


def test_many_entries_at_once() -> None:
    entries = [lpm_entry((number << 16, 32), action("set_tag", number % 4096, 1)) for number in range(3000)]
    with serving() as (_, server), Client(server.address) as client:
        client.become_primary().configure()
        client.write(INSERT, *entries)
        found = client.read_entries(lpm_entry(None))
        assert len(found) == 3000
        assert found == entries
        client.write(DELETE, *entries)
        assert client.read_entries(lpm_entry(None)) == []


def test_controllers_that_come_and_go_while_others_work() -> None:
    failures: list[BaseException] = []
    with serving() as (_, server), Client(server.address, 100) as primary:
        primary.become_primary().configure()

        def come_and_go(election_id: int) -> None:
            try:
                for _ in range(10):
                    with Client(server.address, election_id) as client:
                        client.announce()
                        assert client.standing() == (6, 100)
                        client.read(group_entry(0))
                        with pytest.raises(Failed):
                            client.write(INSERT, group_entry(election_id))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(1, 5)]
        for thread in threads:
            thread.start()
        for number in range(100):
            entry = ternary_entry((number, 0xFFFF), 0x800, 1, action("NoAction"))
            primary.write(INSERT, entry)
            primary.packet_out(FRAME, egress_port=CPU_PORT)
            assert primary.packet_in()[0] == FRAME
            primary.write(DELETE, entry)
        for thread in threads:
            thread.join(60)
        assert not failures
        primary.configure(what=primary.pipeline_config(3))


def test_a_data_plane_that_is_lost_at_its_start_leaves_none() -> None:
    """Otherwise entries would be read back that the switch no longer has."""

    class Losing(Switch):
        is_lost = False

        def run_program(self, data_plane: PacketProcessor) -> None:  # type: ignore[override]
            if self.is_lost:
                raise DataPlaneLost("half of it is there")
            super().run_program(data_plane)

    with ExitStack() as stack:
        switch = stack.enter_context(Losing(FakeDataPlane, [], CPU_PORT))
        server = stack.enter_context(Server(switch, address="127.0.0.1:0"))
        client = stack.enter_context(Client(server.address)).become_primary()
        client.configure()
        switch.is_lost = True
        with refused(StatusCode.UNAVAILABLE, "half of it is there"):
            client.configure(Set.RECONCILE_AND_COMMIT)
        with refused(StatusCode.FAILED_PRECONDITION, "No forwarding pipeline config set"):
            client.read(exact_entry(1))
