# SPDX-License-Identifier: Apache-2.0
"""OmniReduce's and SwitchML's modes give the sum, and send what their papers say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from p4reduce.collectives.plan import Group
from p4reduce.errors import UnsupportedDtype
from p4reduce.protocol import Membership
from p4reduce_bench.allreduce.grid import MODES, Case
from p4reduce_bench.allreduce.inputs import block_masks, tensors
from p4reduce_bench.allreduce.limit import AROUND_PAYLOAD, Traffic, traffic
from p4reduce_bench.peers import streaming
from tests.support.protocol.simulator import Simulation

MEMBERSHIP = Membership(1, 1, 0, 4, slots=8, lanes=4, block_size=64, first_seq=0)
STREAMS = MEMBERSHIP.slots * MEMBERSHIP.lanes
CASE = Case(4, 64 * 200 + 5, "float32", 0.1, "random", "block")


def run(system: str, inputs: list[npt.NDArray[Any]]) -> tuple[list[npt.NDArray[Any]], Traffic]:
    """Run a system, and return all ranks' results and the traffic of the rank that has most."""
    results = [each.copy() for each in inputs]
    plans = [streaming.allreduce(Group(rank, len(inputs)), each, system) for rank, each in enumerate(results)]
    simulation = Simulation(replace(MEMBERSHIP, world_size=len(inputs)), seed=1)
    simulation.reduce([[plan.operation] for plan in plans if plan.operation is not None])
    for plan in plans:
        plan.finish()
    stats = [worker.stats for worker in simulation.workers]
    assert not any(one.retransmissions for one in stats)
    most = Traffic(
        sent=max(one.bytes_sent + AROUND_PAYLOAD * one.packets_sent for one in stats),
        received=max(one.bytes_received + AROUND_PAYLOAD * one.packets_received for one in stats),
        rounds=stats[0].rounds,
    )
    return results, most


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("density", [0, 0.1, 1])
@pytest.mark.parametrize("system", MODES)
def test_the_sum_and_its_volume(system: str, density: float, dtype: str) -> None:
    case = replace(CASE, density=density, dtype=dtype)
    own, exact = zip(*(tensors(case, rank) for rank in range(case.workers)), strict=True)
    results, found = run(system, [each.astype(dtype) for each in own])
    assert all(np.array_equal(result, exact[0].astype(dtype)) for result in results)
    masks = block_masks(case)
    masks[:, : STREAMS if system == "omnireduce" else None] = True
    assert found == traffic(masks, MEMBERSHIP.slots)


def test_switchml_sends_all_whatever_the_density() -> None:
    dense = run("switchml", [np.ones(CASE.numel, np.float32)] * 4)[1]
    assert run("switchml", [np.zeros(CASE.numel, np.float32)] * 4)[1] == dense
    assert dense.rounds == MEMBERSHIP.slots + -(-201 // MEMBERSHIP.lanes)


def test_omnireduce_sends_the_first_block_of_each_stream_though_it_is_zero() -> None:
    zero = run("omnireduce", [np.zeros(CASE.numel, np.float32)] * 4)[1]
    header = AROUND_PAYLOAD + 18 + 16
    # Each slot announces, and then has one round of values.
    assert zero == Traffic(*[2 * MEMBERSHIP.slots * header + STREAMS * 256] * 2, 2 * MEMBERSHIP.slots)
    last = np.zeros(CASE.numel, np.float32)
    last[64 * 199] = 1
    assert run("omnireduce", [last] * 4)[1].rounds == zero.rounds + 1


@pytest.mark.parametrize("system", MODES)
def test_zeros_have_no_sign_and_smallest_values_are_kept(system: str) -> None:
    inputs = np.zeros((4, CASE.numel), np.float32)
    inputs[:, ::64] = -0.0
    inputs[1, 64 * 150 : 64 * 151] = 2.0**-140
    results, _ = run(system, list(inputs))
    for result in results:
        assert not np.signbit(result).any()
        assert np.array_equal(result, inputs.sum(axis=0))


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(UnsupportedDtype, match="float64"):
        streaming.allreduce(Group(0, 2), np.zeros(3), "switchml")
