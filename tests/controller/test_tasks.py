# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio

import pytest

from p4reduce_controller.base import tasks
from p4reduce_controller.base.tasks import Interrupted, Tasks, cancel_and_wait, first_of, isolate_cancellation


async def forever(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        ended.append("ended")


async def cancels_itself() -> None:
    raise asyncio.CancelledError


async def test_who_waits_is_not_cancelled_with_the_work() -> None:
    with pytest.raises(Interrupted):
        await isolate_cancellation(cancels_itself())
    assert await isolate_cancellation(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ZeroDivisionError):
        await isolate_cancellation(fails())


async def fails() -> None:
    raise ZeroDivisionError("a bug")


async def test_the_work_ends_before_who_waits_for_it_and_is_cancelled() -> None:
    ended: list[str] = []
    waiting = asyncio.create_task(isolate_cancellation(forever(ended)))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == ["ended"]


async def test_the_first_of_several_ends_the_others() -> None:
    ended: list[str] = []
    await first_of(asyncio.sleep(0.01), forever(ended))
    assert ended == ["ended"]


async def test_an_owner_hears_of_failures_and_of_cancellations_but_its_own(caplog: pytest.LogCaptureFixture) -> None:
    told: list[BaseException] = []
    ended: list[str] = []
    tasks = Tasks(told.append)
    tasks.start(fails(), "first")
    tasks.start(cancels_itself(), "second")
    tasks.start(forever(ended), "third")
    await asyncio.sleep(0.01)
    assert [type(error) for error in told] == [ZeroDivisionError, Interrupted]
    await tasks.close()
    assert ended == ["ended"]
    assert len(told) == 2
    assert "the task 'first' failed" in caplog.text
    assert "the task 'second' failed" in caplog.text


async def test_a_task_that_forgets_a_cancellation_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_CANCEL_INTERVAL", 0.01)
    forgotten = []

    async def work() -> None:
        while True:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                if forgotten:
                    raise
                forgotten.append(1)

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    await asyncio.wait_for(cancel_and_wait(task), 5)
    assert task.cancelled()
    assert forgotten
