# SPDX-License-Identifier: Apache-2.0
"""Which switches a controller begins with: those that are there soon. The others are taken in when they come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from p4reduce_controller.switches.aggregator import Aggregator, Listener, Superseded, SwitchUnavailable

log = logging.getLogger(__name__)

LATECOMERS = 3.0  # for the others, once one is there: ranks of jobs that were kept wait for the rejoin time at most


async def start_switches(
    switches: Sequence[Aggregator], listener: Callable[[int], Listener], timeout: float, latecomers: float = LATECOMERS
) -> None:
    """First looks at all, and then starts all. Nothing is changed at any of them before all that are there may be.

    Raises SwitchUnavailable where after `timeout` there is none, and Superseded where one is another controller's. A
    cancellation meanwhile says which are awaited.
    """
    try:
        found = await _those_that_come([switch.look(timeout) for switch in switches], timeout, latecomers)
    except asyncio.CancelledError:
        away = ((one.target, one.unavailable) for one in switches)
        awaited = "; ".join(f"the switch at {target} ({why.reason})" for target, why in away if why)
        raise asyncio.CancelledError(f"stopped while it waited for {awaited}") from None
    if superseded := [error for error in found if isinstance(error, Superseded)]:
        raise superseded[0]
    if all(found):
        raise next(filter(None, found))
    starts = [
        switch.start(listener(number), 0.0 if found[number] else timeout) for number, switch in enumerate(switches)
    ]
    for number, error in enumerate(await _those_that_come(starts, timeout, latecomers)):
        if error is not None:
            log.warning("the switch at %s is not connected yet: %s", switches[number].target, found[number] or error)
    unavailable = [why.reason for one in switches if (why := one.unavailable)]
    if len(unavailable) == len(switches):
        raise SwitchUnavailable(f"no switch after {timeout:g} s: {'; '.join(unavailable)}")


async def _those_that_come(
    works: Sequence[Coroutine[Any, Any, None]], timeout: float, latecomers: float
) -> list[BaseException | None]:
    """What each raised. Once one has succeeded, the others have a moment more."""
    tasks = [asyncio.ensure_future(work) for work in works]
    waiting = set(tasks)
    clock = asyncio.get_running_loop().time
    end = clock() + timeout + latecomers  # they have deadlines of their own
    try:
        while waiting and clock() < end:
            done, waiting = await asyncio.wait(waiting, timeout=end - clock(), return_when=asyncio.FIRST_COMPLETED)
            if any(task.exception() is None for task in done):
                end = min(end, clock() + latecomers)
    finally:
        for task in waiting:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    late = SwitchUnavailable("it has not answered yet")
    return [late if isinstance(one, asyncio.CancelledError) else one for one in results]
