# SPDX-License-Identifier: Apache-2.0
"""Messages that a session passes on when a scripted controller changes a job's slots."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.client import Session
from tests.support.scripted_controller import ScriptedController, joined, ready
from tests.support.waiting import wait_until


class FakeHolder:
    """A holder that records the calls which it gets."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.tells: list[Callable[[int, bool, int], None]] = []

    def hold(self, operations: int, tell: Callable[[int, bool, int], None]) -> None:
        self.tells.append(tell)
        self.calls.append(("hold", operations))  # for which tests wait

    def go_on(self, slots: int, first_seq: int) -> None:
        self.calls.append(("go_on", slots, first_seq))


class Holding:
    """A session whose rank holds operations, and its controller."""

    def __init__(self, controller: ScriptedController, **options: object) -> None:
        self.controller, self.holder = controller, FakeHolder()
        self.session: Session = ready(controller, **options)

    def hold(self, operations: int = 0, number: int = 0) -> None:
        """Send a hold as the controller, and wait until the rank has received it."""
        self._send(hold=pb.Hold(operations=operations, number=number))
        assert self.holder.calls[-1] == ("hold", operations)

    def release(self, slots: int = 0, first_seq: int = 0) -> tuple[object, ...]:
        """Send a release as the controller, and return the call that the rank's holder gets."""
        self._send(release=pb.Release(slots=slots, first_seq=first_seq))
        return self.holder.calls[-1]

    def _send(self, **message: object) -> None:
        before = len(self.holder.calls)
        self.controller.send(**message)
        wait_until(lambda: len(self.holder.calls) > before, "the rank to hear it")

    def held(self) -> pb.Held:
        """Return the next message that the controller receives, which must be a Held."""
        message = self.controller.script.next()
        assert message.WhichOneof("message") == "held"
        return message.held

    def come_back(self) -> None:
        """Replace the controller by another one, which the rank rejoins."""
        self.controller = self.controller.again()
        self.controller.script.ready()
        assert self.controller.script.next().WhichOneof("message") == "rejoin"


def with_holder(controller: ScriptedController, **options: object) -> Holding:
    made = Holding(controller, **options)
    made.session.hold_with(made.holder)
    return made


@pytest.mark.parametrize("holds", [False, True])
def test_join_says_whether_the_rank_can_hold(controller: ScriptedController, holds: bool) -> None:
    controller.script.assign()
    with Session(controller.address) as session:
        session.join("name", 1, 3, holds=holds)
        assert controller.script.next().join.holds == holds


def test_hold_and_release_are_passed_on(controller: ScriptedController) -> None:
    it = with_holder(controller)
    it.hold(2**40, number=2**63)
    it.holder.tells[0](2**40, False, 0)
    assert it.held() == pb.Held(operations=2**40, number=2**63)
    it.holder.tells[0](2**40, True, 2**32 - 2)
    assert it.held() == pb.Held(operations=2**40, quiet=True, first_seq=2**32 - 2, number=2**63)
    assert it.release(3, 2**32 - 2) == ("go_on", 3, 2**32 - 2)


@pytest.mark.parametrize(
    ("told", "first_seq", "slots"),
    [((5, True, 8), 8, 3), ((5, True, 8), 6, 0), ((5, False, 0), 8, 0), ((5, False, 0), 0, 0), (None, 8, 0)],
)
def test_what_an_earlier_change_was_changes_nothing(
    controller: ScriptedController, told: tuple[int, bool, int] | None, first_seq: int, slots: int
) -> None:
    it = with_holder(controller)
    it.hold()
    if told is not None:
        it.holder.tells[0](*told)
    assert it.release(3, first_seq)[:2] == ("go_on", slots)


def test_who_does_not_hold_ignores_release(controller: ScriptedController) -> None:
    it = with_holder(controller)
    controller.send(release=pb.Release(slots=3, first_seq=2))
    it.hold()
    assert it.release() == ("go_on", 0, 0)
    controller.send(release=pb.Release())
    it.hold(7)
    assert it.holder.calls == [("hold", 0), ("go_on", 0, 0), ("hold", 7)]


def test_a_hold_may_come_before_who_holds(controller: ScriptedController) -> None:
    it = Holding(controller)
    for message in ({"hold": pb.Hold(operations=1)}, {"release": pb.Release()}, {"hold": pb.Hold(operations=2)}):
        controller.send(**message)
    wait_until(lambda: it.session._holding._count == 3, "the session to hear all three")
    it.session.hold_with(it.holder)
    assert it.holder.calls == [("hold", 2)]
    it.holder.tells[0](2, True, 4)
    assert it.held().operations == 2


def test_what_is_told_late_is_not_said(controller: ScriptedController) -> None:
    """Such an answer belongs to a hold that the controller has ended."""
    it = with_holder(controller)
    it.hold()
    it.release()
    it.holder.tells[0](1, True, 2)
    it.hold()
    it.holder.tells[0](1, True, 2)
    it.holder.tells[1](5, True, 6)
    assert it.held() == pb.Held(operations=5, quiet=True, first_seq=6)


def test_a_controller_that_is_back_hears_of_no_hold_but_its_own(controller: ScriptedController) -> None:
    it = with_holder(controller, key="secret")
    it.hold()
    it.holder.tells[0](3, True, 8)
    it.held()
    controller.stop()
    wait_until(lambda: it.session._away, "the session to notice")
    it.holder.tells[0](4, True, 8)  # said to nobody
    it.come_back()
    assert it.release() == ("go_on", 0, 0)
    it.hold(6, number=2)
    it.holder.tells[0](4, True, 8)
    it.holder.tells[1](6, True, 12)
    assert it.held() == pb.Held(operations=6, quiet=True, first_seq=12, number=2)


def test_who_does_not_hold_says_nothing_to_a_controller_that_is_back(controller: ScriptedController) -> None:
    it = with_holder(controller, key="secret")
    it.hold()
    it.holder.tells[0](3, True, 8)
    it.held()
    it.release()
    controller.stop()
    wait_until(lambda: it.session._away, "the session to notice")
    it.come_back()
    wait_until(lambda: not it.session._away, "the session to be back")
    it.session.ask(1)
    assert it.controller.script.next().WhichOneof("message") == "unanswered"


def test_who_leaves_says_nothing_more(controller: ScriptedController) -> None:
    it = with_holder(controller)
    it.hold()
    controller.send(left=pb.Left())
    it.session.leave()
    it.holder.tells[0](3, True, 8)
    assert controller.script.received.empty() or controller.script.next().WhichOneof("message") == "leave"


def test_nobody_is_told_before_the_job_is_ready(controller: ScriptedController) -> None:
    session = joined(controller)
    controller.send(release=pb.Release())
    controller.script.ready()
    session.wait_ready(lambda: None)
