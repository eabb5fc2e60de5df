# SPDX-License-Identifier: Apache-2.0
"""A future ends whatever a signal's handler raised in the code that asks for it."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any

import pytest

from p4reduce.engine.waiting import ends_within

Future = concurrent.futures.Future[int]


def test_a_lock_that_a_handlers_exception_left_held_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    class Left(Exception):
        pass

    def leave(*_: object) -> None:
        raise Left  # where a handler's exception would be raised, before the lock is released

    future: Future = concurrent.futures.Future()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "__exit__", leave)
        with pytest.raises(Left):
            future.done()
    thread = threading.Thread(target=future.set_result, args=[1], daemon=True)
    thread.start()
    assert ends_within(future, 10.0)
    thread.join(10.0)
    assert not thread.is_alive()


@pytest.mark.parametrize("timeout", [0.0, 0.01])
def test_a_time_limit(timeout: float) -> None:
    future: Future = concurrent.futures.Future()
    assert not ends_within(future, timeout)
    future.set_result(1)
    assert ends_within(future, timeout)


def test_no_time_limit() -> None:
    future: Any = concurrent.futures.Future()
    threading.Timer(0.01, future.set_exception, [ValueError()]).start()
    assert ends_within(future, None)
