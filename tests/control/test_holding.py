# SPDX-License-Identifier: Apache-2.0
"""What a session passes on when the controller changes a job's slots, against a controller that follows a script."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.client import Session

from .conftest import ScriptedController
from .test_session import joined, ready, wait_until


class FakeHolder:
    """Says what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.tells: list[Callable[[int, bool, int], None]] = []

    def hold(self, operations: int, tell: Callable[[int, bool, int], None]) -> None:
        self.calls.append(("hold", operations))
        self.tells.append(tell)

    def go_on(self, slots: int, first_seq: int) -> None:
        self.calls.append(("go_on", slots, first_seq))


def send(controller: ScriptedController, **message: object) -> None:
    controller.script.send.put(pb.ServerMessage(**message))  # type: ignore[arg-type]


def held(controller: ScriptedController) -> pb.Held:
    message = controller.script.next()
    assert message.WhichOneof("message") == "held"
    return message.held


def with_holder(controller: ScriptedController, **options: object) -> tuple[Session, FakeHolder]:
    session, holder = ready(controller, **options), FakeHolder()
    session.hold_with(holder)
    return session, holder


@pytest.mark.parametrize("holds", [False, True])
def test_join_says_whether_the_rank_can_hold(controller: ScriptedController, holds: bool) -> None:
    controller.script.assign()
    with Session(controller.address) as session:
        session.join("name", 1, 3, holds=holds)
        assert controller.script.next().join.holds == holds


def test_hold_and_release_are_passed_on(controller: ScriptedController) -> None:
    session, holder = with_holder(controller)
    send(controller, hold=pb.Hold(operations=2**40, number=2**63))
    wait_until(lambda: holder.calls == [("hold", 2**40)])
    holder.tells[0](2**40, False, 0)
    assert held(controller) == pb.Held(operations=2**40, number=2**63)
    holder.tells[0](2**40, True, 2**32 - 2)
    assert held(controller) == pb.Held(operations=2**40, quiet=True, first_seq=2**32 - 2, number=2**63)
    send(controller, release=pb.Release(slots=3, first_seq=2**32 - 2))
    wait_until(lambda: holder.calls[1:] == [("go_on", 3, 2**32 - 2)])
    session.close()


@pytest.mark.parametrize(
    ("told", "first_seq", "slots"),
    [((5, True, 8), 8, 3), ((5, True, 8), 6, 0), ((5, False, 0), 8, 0), ((5, False, 0), 0, 0), (None, 8, 0)],
)
def test_what_an_earlier_change_was_changes_nothing(
    controller: ScriptedController, told: tuple[int, bool, int] | None, first_seq: int, slots: int
) -> None:
    session, holder = with_holder(controller)
    send(controller, hold=pb.Hold())
    wait_until(lambda: len(holder.calls) == 1)
    if told is not None:
        holder.tells[0](*told)
    send(controller, release=pb.Release(slots=3, first_seq=first_seq))
    wait_until(lambda: len(holder.calls) == 2)
    assert holder.calls[1][:2] == ("go_on", slots)
    session.close()


def test_who_does_not_hold_ignores_release(controller: ScriptedController) -> None:
    session, holder = with_holder(controller)
    send(controller, release=pb.Release(slots=3, first_seq=2))
    send(controller, hold=pb.Hold())
    wait_until(lambda: bool(holder.calls))
    assert holder.calls == [("hold", 0)]
    for _ in range(2):
        send(controller, release=pb.Release())
    send(controller, hold=pb.Hold(operations=7))
    wait_until(lambda: len(holder.calls) == 3)
    assert holder.calls[1:] == [("go_on", 0, 0), ("hold", 7)]
    session.close()


def test_a_hold_may_come_before_who_holds(controller: ScriptedController) -> None:
    session, holder = ready(controller), FakeHolder()
    send(controller, hold=pb.Hold(operations=1))
    send(controller, release=pb.Release())
    send(controller, hold=pb.Hold(operations=2))
    wait_until(lambda: session._holding._count == 3)
    session.hold_with(holder)
    assert holder.calls == [("hold", 2)]
    holder.tells[0](2, True, 4)
    assert held(controller).operations == 2
    session.close()


def test_what_is_told_late_is_not_said(controller: ScriptedController) -> None:
    """It is of a hold that the controller has ended."""
    session, holder = with_holder(controller)
    send(controller, hold=pb.Hold())
    wait_until(lambda: len(holder.calls) == 1)
    send(controller, release=pb.Release())
    wait_until(lambda: len(holder.calls) == 2)
    holder.tells[0](1, True, 2)
    send(controller, hold=pb.Hold())
    wait_until(lambda: len(holder.calls) == 3)
    holder.tells[0](1, True, 2)
    holder.tells[1](5, True, 6)
    assert held(controller) == pb.Held(operations=5, quiet=True, first_seq=6)
    session.close()


def test_a_controller_that_is_back_hears_of_no_hold_but_its_own(controller: ScriptedController) -> None:
    session, holder = with_holder(controller, key="secret")
    send(controller, hold=pb.Hold())
    wait_until(lambda: len(holder.calls) == 1)
    holder.tells[0](3, True, 8)
    held(controller)
    controller.stop()
    wait_until(lambda: session._away)
    holder.tells[0](4, True, 8)  # said to nobody
    back = ScriptedController(port=controller.port)
    try:
        back.script.ready()
        assert back.script.next().WhichOneof("message") == "rejoin"
        send(back, release=pb.Release())
        send(back, hold=pb.Hold(operations=6, number=2))
        wait_until(lambda: len(holder.calls) == 3)
        assert holder.calls[1:] == [("go_on", 0, 0), ("hold", 6)]
        holder.tells[0](4, True, 8)
        holder.tells[1](6, True, 12)
        assert held(back) == pb.Held(operations=6, quiet=True, first_seq=12, number=2)
    finally:
        session.close()
        back.stop()


def test_who_does_not_hold_says_nothing_to_a_controller_that_is_back(controller: ScriptedController) -> None:
    session, holder = with_holder(controller, key="secret")
    send(controller, hold=pb.Hold())
    wait_until(lambda: len(holder.calls) == 1)
    holder.tells[0](3, True, 8)
    held(controller)
    send(controller, release=pb.Release())
    wait_until(lambda: len(holder.calls) == 2)
    controller.stop()
    wait_until(lambda: session._away)
    back = ScriptedController(port=controller.port)
    try:
        back.script.ready()
        assert back.script.next().WhichOneof("message") == "rejoin"
        wait_until(lambda: not session._away)
        session.ask(1)
        assert back.script.next().WhichOneof("message") == "unanswered"
    finally:
        session.close()
        back.stop()


def test_who_leaves_says_nothing_more(controller: ScriptedController) -> None:
    session, holder = with_holder(controller)
    send(controller, hold=pb.Hold())
    wait_until(lambda: len(holder.calls) == 1)
    send(controller, left=pb.Left())
    session.leave()
    holder.tells[0](3, True, 8)
    assert controller.script.received.empty() or controller.script.next().WhichOneof("message") == "leave"
    session.close()


def test_nobody_is_told_before_the_job_is_ready(controller: ScriptedController) -> None:
    session = joined(controller)
    send(controller, release=pb.Release())
    controller.script.ready()
    session.wait_ready(lambda: None)
    session.close()
