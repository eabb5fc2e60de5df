# SPDX-License-Identifier: Apache-2.0
"""Options that cannot be meant are refused by the C library, which names them."""

from __future__ import annotations

import contextlib
import ctypes
import math
import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from p4reduce.fastpath import structures as c
from p4reduce.fastpath.library import find, library

SHAPE = {"job": 7, "generation": 1, "rank": 0, "slots": 8, "lanes": 4, "block_size": 64, "first_seq": 0}


def refusal(call: Callable[..., int | None], *arguments: Any) -> str:
    error = c.Error.make()
    assert not call(*arguments, error)
    assert error.status == c.INVALID
    return error.message.decode()


def options_of(sockets: Sequence[int], jobs: Sequence[int], threads: int) -> c.Options:
    return c.Options.make(
        link=c.LINK_UDP, socket=sockets[0], threads=threads, more_count=len(sockets) - 1,
        more_sockets=(ctypes.c_int32 * (len(sockets) - 1))(*sockets[1:]),
        more_jobs=(ctypes.c_uint32 * len(jobs))(*jobs),
    )  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("third", [-1, 0, 1])
def test_sockets_are_several(threads: int, third: int) -> None:
    """third: -1, or which of the others."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)).fileno() for _ in range(2)]
        sockets.append(sockets[third] if third >= 0 else -1)
        options = options_of(sockets, [8 << 16, 9 << 16], threads)
        member = c.Membership.make(world_size=1, **SHAPE)
        said = refusal(library().p4reduce_open, member, options)
    assert said == f"a socket is {sockets[2]}: accepted are open ones, each once"


@pytest.mark.parametrize("jobs", [(8, 0), (8, 7), (8, 8)])
def test_threads_have_jobs_of_their_own(jobs: tuple[int, int]) -> None:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)).fileno() for _ in range(3)]
        options = options_of(sockets, [job << 16 | 1 for job in jobs], 3)
        said = refusal(library().p4reduce_open, c.Membership.make(world_size=1, **SHAPE), options)
    assert said.startswith(f"more_jobs has job {jobs[1]}: accepted are numbers from 1 on, each once")


def test_ranks_that_share_a_stream_have_one_thread() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as other:
        options = options_of([one.fileno(), other.fileno()], [8 << 16], 2)
        local = c.LocalOptions.make(meeting=b"nobody", timeout=1)
        member = c.Membership.make(world_size=2, sharing=1, **SHAPE)
        said = refusal(library().p4reduce_open_sharing, member, options, local)
        assert said == "threads is 2: accepted is 1 where ranks share streams"
        options = c.Options(size=4, switch_address=ctypes.c_char_p(1))  # which is not among the first 4 bytes
        said = refusal(library().p4reduce_open_sharing, member, options, local)
        assert "link is 0" in said


def test_sums_are_divided_by_numbers() -> None:
    member = c.Membership.make(world_size=1, **SHAPE)
    worker = library().p4reduce_worker_new(member, None, c.Error.make())
    data = np.ones(10, np.float32)
    request = c.Request.make(type=c.TYPES["float32"], data=data.ctypes.data, count=10, divisor=math.nan)
    error = c.Error.make()
    status = library().p4reduce_worker_submit(ctypes.c_void_p(worker), request, ctypes.c_double(0), error)
    library().p4reduce_worker_free(ctypes.c_void_p(worker))
    assert (status, error.message) == (c.INVALID, b"divisor is nan: it must be a number")


def test_a_seat_may_not_be_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_SEAT", "x" * 3000)
    opened = ctypes.CDLL(str(find())).p4reduce_open_from_environment
    opened.restype = ctypes.c_void_p
    said = refusal(lambda error: opened(ctypes.byref(error)))
    assert said == "P4REDUCE_SEAT has 3000 characters: accepted are up to 2047"
