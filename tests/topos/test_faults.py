# SPDX-License-Identifier: Apache-2.0
"""Each fault ends in right sums or in the error that it must end in; without the protection for it, it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from p4reduce.errors import P4ReduceError
from p4reduce_topos import star
from p4reduce_topos.faults import FAULTS, LEASE_S, Event, Fault, prepared, suffer, verdict

from .conftest import Start

pytestmark = [pytest.mark.mininet, pytest.mark.root]

MUTANTS = Path(__file__).with_name("mutants")


def ends(start: Start, fault: Fault, lease: float = LEASE_S, **options: Any) -> dict[int, Event]:
    topology = prepared(fault, star.build(3, others=1))
    with start(topology, controller_options=["--lease", str(lease)], **options) as network:
        return suffer(network, fault)


@pytest.mark.parametrize("name", FAULTS)
def test_it_ends_well(start: Start, name: str) -> None:
    assert verdict(FAULTS[name], ends(start, FAULTS[name])) == []


def comes_out_wrong(start: Start, name: str, **options: Any) -> list[str]:
    """What the fault's verdict is, or that a rank did not end in time."""
    try:
        return verdict(FAULTS[name], ends(start, FAULTS[name], **options))
    except P4ReduceError as error:
        return [str(error)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "protection"),
    [
        ("worker-killed", "ranks that are lost"),
        ("link-down", "time-outs"),
        ("switch-restarted", "switches that are lost"),
        ("controller-restarted", "controllers that are lost"),
        ("controller-partitioned", "controllers that are silent"),
    ],
)
def test_without_the_protection_it_does_not(
    start: Start, monkeypatch: pytest.MonkeyPatch, name: str, protection: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(MUTANTS))
    monkeypatch.setenv("P4REDUCE_WITHOUT", protection)
    monkeypatch.setenv("P4REDUCE_BACKEND", "python")
    assert comes_out_wrong(start, name)


def test_without_the_frames_check_sequence_sums_would_be_wrong(start: Start) -> None:
    said = comes_out_wrong(start, "corrupted", unchecked=True)
    assert any("wrong" in line for line in said), said


def test_with_a_shorter_lease_a_worker_that_pauses_is_given_up(start: Start) -> None:
    said = comes_out_wrong(start, "worker-paused", lease=1.0)
    assert said
    assert all("JobAborted" in line for line in said), said
