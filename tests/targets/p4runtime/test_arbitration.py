# SPDX-License-Identifier: Apache-2.0
"""Arbitration: which client becomes primary, and which clients are notified of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from finsy.proto import p4r
from grpc import StatusCode

from tests.support.waiting import wait_until

from .client import DELETE, DEVICE, INSERT, Client, Failed, action, exact_entry, refused

PRIMARY, BACKUP, NO_PRIMARY = 0, 6, 5  # OK, ALREADY_EXISTS, NOT_FOUND
HIGH = 1 << 100


@pytest.fixture
def clients(address: str) -> Iterator[list[Client]]:
    """Yield three clients that have not sent anything yet."""
    with ExitStack() as stack:
        yield [stack.enter_context(Client(address, election_id)) for election_id in (10, 20, HIGH)]


def primary_and_backup(primary: Client, *backups: Client) -> None:
    primary.become_primary()
    for backup in backups:
        backup.announce()
        assert backup.standing() == (BACKUP, primary.election_id)


def test_a_higher_one_takes_over_and_all_are_told(clients: list[Client]) -> None:
    low, middle, high = clients
    primary_and_backup(middle, low)
    high.announce()
    assert high.standing() == (PRIMARY, HIGH)
    assert middle.standing() == (BACKUP, HIGH)
    assert low.standing() == (BACKUP, HIGH)
    assert high.is_quiet()


def test_when_the_primary_goes_the_next_one_takes_over(clients: list[Client]) -> None:
    low, middle, high = clients
    primary_and_backup(high, low, middle)
    high.hang_up()
    assert middle.standing() == (PRIMARY, 20)
    assert low.standing() == (BACKUP, 20)


def test_a_controller_can_raise_itself(clients: list[Client]) -> None:
    low, middle, _ = clients
    primary_and_backup(middle, low)
    low.announce(election_id=30)
    assert low.standing() == (PRIMARY, 30)
    assert middle.standing() == (BACKUP, 30)


def test_a_controller_can_step_back(clients: list[Client]) -> None:
    low, middle, _ = clients
    primary_and_backup(middle, low)
    middle.announce(election_id=5)
    assert middle.standing() == (BACKUP, 10)
    assert low.standing() == (PRIMARY, 10)


def test_an_election_id_that_another_has_ends_the_stream(clients: list[Client]) -> None:
    first, second, _ = clients
    first.become_primary()
    second.announce(election_id=10)
    with refused(StatusCode.INVALID_ARGUMENT):
        second.receive()
    assert first.is_quiet()


@pytest.mark.bmv2_differs("BMv2 then takes the other controller out of its books")
def test_changing_to_an_election_id_that_another_has_ends_the_stream(clients: list[Client]) -> None:
    first, second, _ = clients
    first.become_primary()
    second.announce()
    assert second.standing() == (PRIMARY, 20)
    assert first.standing() == (BACKUP, 20)
    second.announce(election_id=10)
    with refused(StatusCode.INVALID_ARGUMENT):
        second.receive()
    assert first.standing() == (PRIMARY, 10)


@pytest.mark.bmv2_differs("BMv2 takes an election id that is unset for the lowest of all")
def test_without_an_election_id_one_is_never_primary(clients: list[Client]) -> None:
    silent, other, _ = clients
    silent.announce(election_id=0)
    assert silent.standing() == (NO_PRIMARY, 0)
    other.announce()
    assert other.standing() == (PRIMARY, 20)
    assert silent.standing() == (BACKUP, 20)
    other.hang_up()
    assert silent.standing() == (NO_PRIMARY, 0)


def test_only_the_primary_may_write(primary: Client, address: str) -> None:
    with Client(address, election_id=2) as usurper:
        entry = exact_entry(1, action("forward", 1))
        for call in (lambda: usurper.write(INSERT, entry), usurper.configure):
            with refused(StatusCode.PERMISSION_DENIED):
                call()
        primary.write(INSERT, entry)
        usurper.become_primary()
        assert usurper.read_entries(entry)  # anybody may read
        with refused(StatusCode.PERMISSION_DENIED):
            primary.write(DELETE, entry)
        usurper.write(DELETE, entry)


def test_nobody_may_write_when_there_is_no_primary(primary: Client) -> None:
    primary.hang_up()

    def is_refused() -> bool:
        try:
            primary.write(INSERT)
        except Failed as error:
            return error.code is StatusCode.PERMISSION_DENIED
        return False

    wait_until(is_refused, "the server to hear of it")


@pytest.mark.bmv2_differs("BMv2 takes any device id")
def test_another_device_is_not_here(address: str) -> None:
    with Client(address) as client:
        client.announce(device_id=2)
        with refused(StatusCode.NOT_FOUND):
            client.receive()


def test_more_controllers_than_a_server_takes(address: str) -> None:
    with ExitStack() as stack:
        for election_id in range(1, 17):
            stack.enter_context(Client(address, election_id)).become_primary()
        late = stack.enter_context(Client(address, 17))
        late.announce()
        with refused(StatusCode.RESOURCE_EXHAUSTED):
            late.receive()


def test_a_controller_that_vanishes_makes_way(clients: list[Client]) -> None:
    low, middle, _ = clients
    primary_and_backup(middle, low)
    middle.vanish()
    assert low.standing() == (PRIMARY, 10)


@pytest.mark.bmv2_differs
def test_another_role(address: str) -> None:
    with Client(address) as client:
        client.open()
        request = p4r.StreamMessageRequest()
        request.arbitration.device_id = DEVICE
        request.arbitration.role.name = "sdn_controller"
        request.arbitration.election_id.low = 1
        client.send(request)
        with refused(StatusCode.UNIMPLEMENTED, "default role"):
            client.receive()
