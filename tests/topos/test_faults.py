# SPDX-License-Identifier: Apache-2.0
"""Each fault ends in right sums or in the error that it must end in; without the protection for it, it does not."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from p4reduce.errors import P4ReduceError
from p4reduce_topos.faults.catalogue import FAULTS, LEASE_S, Fault
from p4reduce_topos.faults.ranks import Event
from p4reduce_topos.faults.suffering import prepared, suffer, verdict
from p4reduce_topos.topologies import star, two_racks

from ..p4src.test_protections import SMALL, changed
from .conftest import Start

pytestmark = [pytest.mark.mininet, pytest.mark.root]

MUTANTS = Path(__file__).with_name("mutants")


def ends(start: Start, fault: Fault, controller_options: Sequence[str] = (), **options: Any) -> dict[int, Event]:
    topology = prepared(fault, star.build(3, others=1))
    controller = ["--lease", str(LEASE_S), *controller_options]
    with start(topology, controller_options=controller, **options) as network:
        return suffer(network, fault)


@pytest.mark.parametrize(
    "name", [name if name == "worker-killed" else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS]
)
def test_it_ends_well(start: Start, name: str) -> None:
    assert verdict(FAULTS[name], ends(start, FAULTS[name])) == []


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sim", "bmv2"])
def test_a_controller_may_restart_on_every_target(start: Start, target: str) -> None:
    if target == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("needs simple_switch_grpc")
    fault = FAULTS["controller-restarted"]
    assert verdict(fault, ends(start, fault, target=target)) == []


@pytest.mark.slow
def test_a_controller_may_restart_over_leaves(start: Start) -> None:
    """Two of them, below a spine."""
    fault = FAULTS["controller-restarted"]
    with start(two_racks.build(4)) as network:
        assert verdict(fault, suffer(network, fault)) == []


def comes_out_wrong(start: Start, name: str, **options: Any) -> list[str]:
    """What the fault's verdict is, or that a rank did not end in time."""
    try:
        return verdict(FAULTS[name], ends(start, FAULTS[name], **options))
    except P4ReduceError as error:
        return [str(error)]


def test_what_mutants_take_out_is_there() -> None:
    """A mutant that takes out nothing is no mutant, and Python passes over errors of `sitecustomize`."""
    for protection, parts in runpy.run_path(str(MUTANTS / "sitecustomize.py"))["PROTECTIONS"].items():
        for module, owner, name, _ in parts:
            where = import_module(module)
            assert hasattr(getattr(where, owner) if owner else where, name), protection


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "protection"),
    [
        ("worker-killed", "ranks that are lost"),
        ("link-down", "time-outs"),
        ("switch-restarted", "switches that are lost"),
        ("controller-restarted", "jobs that are kept"),
        ("controller-restarted", "ranks that come back"),
        ("controller-killed", "controllers that are lost"),
        ("worker-partitioned", "leases"),
        ("controller-partitioned", "leases"),
        ("forged", "ports that are admitted"),
    ],
)
def test_without_the_protection_it_does_not(
    start: Start, monkeypatch: pytest.MonkeyPatch, name: str, protection: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(MUTANTS))
    monkeypatch.setenv("P4REDUCE_WITHOUT", protection)
    monkeypatch.setenv("P4REDUCE_BACKEND", "python")
    assert comes_out_wrong(start, name)


@pytest.mark.slow
def test_without_the_frames_check_sequence_it_does_not(start: Start) -> None:
    assert comes_out_wrong(start, "corrupted", unchecked=True)


@pytest.mark.p4c
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"), [("duplicated", "seen"), ("reordered", "stale"), ("other-shape", "fingerprint")]
)
def test_without_the_switchs_protection_it_does_not(start: Start, tmp_path: Path, name: str, change: str) -> None:
    """The switch runs a program that lacks it: see tests/p4src/test_protections.py."""
    if shutil.which("p4c-bm2-ss") is None:
        pytest.skip("p4c-bm2-ss is not on PATH")
    changed(change, tmp_path / "p4src").compile_program(tmp_path / "compiled", SMALL)
    pipeline = ["--pipeline", str(tmp_path / "compiled")]
    assert comes_out_wrong(start, name, target="sim", controller_options=pipeline)
