# SPDX-License-Identifier: Apache-2.0
"""An engine of several threads, each with a share of the slots, is to callers what an engine of one is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p4reduce.errors import CollectiveTimeout, JobAborted, MismatchError
from p4reduce.fastpath.engine import NativeEngine
from p4reduce.protocol import Operation
from p4reduce.protocol.fingerprint import fingerprint
from p4reduce.protocol.halves import type_name
from p4reduce.protocol.numbers import Wire, reference_allreduce
from p4reduce.transport import open_transport
from tests.support.hostlib import engines
from tests.support.hostlib.engines import (
    MORE,
    Parts,
    SharedRank,
    SharedUdpSwitch,
    shared,
)
from tests.support.hostlib.udp_switch import UdpSwitch, members
from tests.support.waiting import stays, wait_until

ranks = partial(engines.ranks, SharedRank)


@pytest.fixture
def switch() -> Iterator[UdpSwitch]:
    with contextlib.closing(SharedUdpSwitch()) as switch:
        yield switch


@pytest.fixture
def everyone(switch: UdpSwitch) -> Iterator[list[SharedRank]]:
    """Yield two ranks of two threads, each of which has four of eight slots."""
    with ranks(switch, 2) as both:
        yield both  # type: ignore[misc]


LARGE = 64 * 4 * 100
SMALL = 64 * 4 * 4  # what four slots take at once


def full(size: int, value: float = 1.0) -> npt.NDArray[np.float32]:
    return np.full(size, value, np.float32)


def reduce(everyone: Sequence[SharedRank], arrays: Sequence[npt.NDArray[Any]], **how: Any) -> None:
    """Reduce the ranks' arrays, which the sum replaces."""
    ended: list[BaseException | None] = []
    for rank, array in zip(everyone, arrays, strict=True):
        rank.engine.submit(Operation(array, **how), name="sum", timeout=30, on_end=ended.append)
    wait_until(lambda: len(ended) == len(everyone), "the operations to end", 30)
    assert ended == [None] * len(everyone)


# Results.

FORMS = [("float32", "int32"), ("float32", "int16"), ("float32", "int8"), ("float16", "int16"), ("int32", "int32")]


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[int, list[SharedRank]]]:
    """Yield two ranks of one thread, two of two threads, and two of three, by the number of threads."""
    with contextlib.ExitStack() as stack:
        found = {}
        for threads in (1, 2, 3):
            switch = SharedUdpSwitch()
            stack.callback(switch.close)
            kind = type("SharedRankOfSome", (SharedRank,), {"threads": threads})
            found[threads] = stack.enter_context(engines.ranks(kind, switch, 2))
        yield found  # type: ignore[misc]


def values(form: str, size: int, density: float, seed: int) -> list[npt.NDArray[Any]]:
    """Return random values for two ranks."""
    generator = np.random.default_rng(seed)
    arrays = []
    for _ in range(2):
        array = generator.standard_normal(size) * 10.0 ** generator.integers(-3, 4, size)
        array[np.repeat(generator.random(-(-size // 64)) >= density, 64)[:size]] = -0.0
        arrays.append((array * 1000 if form == "int32" else array).astype(form))
    return arrays


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    form=st.sampled_from(FORMS),
    size=st.one_of(st.integers(0, 300), st.integers(0, 20_000)),
    density=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_results_have_the_same_bits(
    teams: dict[int, list[SharedRank]], form: tuple[str, Wire], size: int, density: float, seed: int
) -> None:
    dtype, wire = form
    for everyone in teams.values():
        arrays = values(dtype, size, density, seed)
        counter = everyone[0].engine.stats.operations
        name = type_name(arrays[0].dtype)
        number = fingerprint(counter, name if wire == "int32" else f"{name}:{wire}", "sum", size)
        expected = reference_allreduce(arrays, wire=wire, operation=number)
        reduce(everyone, arrays, wire=wire)
        for array in arrays:
            assert array.tobytes() == expected.tobytes()


def test_residuals_have_the_same_bits(teams: dict[int, list[SharedRank]]) -> None:
    found = set()
    for everyone in teams.values():
        arrays, residual = values("float32", 20_000, 0.5, 3), np.zeros((2, 20_000), np.float32)
        ended: list[BaseException | None] = []
        for rank, array, own in zip(everyone, arrays, residual, strict=True):
            operation = Operation(array, wire="int16", residual=own)
            rank.engine.submit(operation, name="sum", timeout=30, on_end=ended.append)
        wait_until(lambda ended=ended: len(ended) == 2, "the operations to end", 30)  # type: ignore[misc]
        found.add((arrays[0].tobytes(), residual.tobytes()))
    assert len(found) == 1


# The work of each thread.


def test_what_is_small_wakes_one_thread(switch: SharedUdpSwitch, everyone: list[SharedRank]) -> None:
    for size in (0, 1, SMALL):
        reduce(everyone, [full(size), full(size)])
    assert switch.came[1] == 0 < switch.came[0]
    reduce(everyone, [full(SMALL + 1), full(SMALL + 1)])
    assert switch.came[1] > 0


def test_what_is_large_is_shared_alike(switch: SharedUdpSwitch, everyone: list[SharedRank]) -> None:
    reduce(everyone, [full(LARGE), full(LARGE)])
    assert abs(switch.came[0] - switch.came[1]) < 0.2 * switch.came[0]
    stats = everyone[0].engine.stats
    assert (stats.operations, stats.blocks_sent, stats.blocks_received) == (1, LARGE // 64, LARGE // 64)
    assert everyone[0].engine.link().endswith(", in 2 threads")  # type: ignore[attr-defined]


# Ends.


def test_a_timeout_says_what_the_slowest_thread_waits_for(switch: SharedUdpSwitch, everyone: list[SharedRank]) -> None:
    switch.deaf_to = {(1, 1)}
    for rank, limit in zip(everyone, (1.0, 20.0), strict=True):
        rank.submit(full(LARGE), timeout=limit)
    error = everyone[0].error()
    assert isinstance(error, CollectiveTimeout)
    assert error.awaited == (1,)
    assert "sum did not end within 1 s: waiting for rank 1" in str(error)
    assert "waiting for" in everyone[0].engine.progress() or "has not answered" in everyone[0].engine.progress()


def test_an_abort_that_one_thread_hears_ends_all(switch: SharedUdpSwitch, everyone: list[SharedRank]) -> None:
    membership = members(2)[0]
    switch.abort(replace(membership, job=membership.job + MORE), rank=1)
    wait_until(lambda: everyone[0].engine.failure is not None, "the abort to arrive")
    assert isinstance(everyone[0].engine.failure, JobAborted)
    with pytest.raises(JobAborted):
        everyone[0].submit(full(1))


@pytest.mark.slow
def test_what_another_threads_half_holds_fails_the_job(switch: SharedUdpSwitch, everyone: list[SharedRank]) -> None:
    asked: list[int] = []
    engine, seq = everyone[0].engine, members(2)[0].first_seq
    engine.on_silence = asked.append
    switch.deaf_to = {(1, 0), (1, 1)}
    everyone[0].submit(full(LARGE))
    everyone[1].submit(full(LARGE))
    wait_until(lambda: asked, "the engine to ask", 30)
    assert asked[0] >> 1 in range(4, 8)
    engine.counted(asked[0], seq + 1, MismatchError("cannot be known"))
    stays(lambda: engine.failure is None, "what cannot be known fails nothing", 0.1)
    engine.counted(asked[0], seq + 2, MismatchError("rank 1 went ahead"))
    assert str(everyone[0].error()) == "rank 1 went ahead"


def test_tensors_of_what_has_failed_stay_as_they_are(switch: UdpSwitch) -> None:
    """An operation ends when no thread has any of it."""
    for number in range(10):
        with ranks(switch, 2) as both:
            arrays = [full(20 * LARGE), full(20 * LARGE)]
            for rank, array in zip(both, arrays, strict=True):
                rank.submit(array)
            time.sleep(0.002 * number)
            both[0].engine.fail(MismatchError("enough"))
            both[0].wait()
            arrays[0][:] = 7
            time.sleep(0.02)
            assert (arrays[0] == 7).all() or both[0].ended[0][1] is None


def test_threads_have_to_be_possible(switch: UdpSwitch) -> None:
    for threads, sockets, slots in ((2, 1, 8), (2, 3, 8), (3, 3, 2)):
        transport = Parts([open_transport("udp", switch.endpoint) for _ in range(sockets)])
        membership = shared(members(1, slots=slots)[0], threads)
        with (
            contextlib.closing(transport),
            pytest.raises(ValueError, match=f"threads is {threads} of {slots} slots, with {sockets} sockets: accepted"),
        ):
            NativeEngine(transport, membership, switch="nowhere")
