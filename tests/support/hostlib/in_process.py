# SPDX-License-Identifier: Apache-2.0
"""Several ranks in one process, each in its own thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from p4reduce import Communicator

R = TypeVar("R")
Join = Callable[..., list[Communicator]]


def together(communicators: list[Communicator], do: Callable[[Communicator], R]) -> list[R]:
    """Call `do` for each rank, all at once, and return the results."""
    with ThreadPoolExecutor(len(communicators)) as pool:
        return [future.result(60) for future in [pool.submit(do, each) for each in communicators]]


def join(world_size: int, **options: Any) -> list[Communicator]:
    """Let the ranks of a new job join, and return their communicators."""
    with ThreadPoolExecutor(world_size) as pool:
        futures = [
            pool.submit(Communicator, rank=rank, world_size=world_size, **{"timeout": 20.0, **options})
            for rank in range(world_size)
        ]
        return [future.result(60) for future in futures]


def error_of(call: Callable[[], object]) -> BaseException | None:
    """Return the exception that a call raises, or None."""
    try:
        call()
    except BaseException as error:
        return error
    return None
