# SPDX-License-Identifier: Apache-2.0
"""Each fault ends in right sums or in the error that it must end in. Without the protection for it, it does not."""

from __future__ import annotations

import runpy
import shutil
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from p4reduce.errors import P4ReduceError
from p4reduce_topos.faults.catalogue import FAULTS, LEASE_S, VICTIM, Fault, outsider
from p4reduce_topos.faults.injection import inject, prepare_topology, violations
from p4reduce_topos.faults.ranks import Event
from p4reduce_topos.model import LinkProperties
from p4reduce_topos.topologies import star
from p4reduce_topos.topologies.catalogue import TOPOLOGIES
from p4reduce_topos.topologies.parts import with_extra_host
from tests.support.mininet import Start
from tests.support.protections import SMALL, changed

pytestmark = [pytest.mark.mininet, pytest.mark.root]

MUTANTS = Path(__file__).with_name("mutants")


def ends(start: Start, fault: Fault, controller_options: Sequence[str] = (), **options: Any) -> dict[int, Event]:
    topology = prepare_topology(fault, star.build(3, others=1))
    controller = ["--lease", str(LEASE_S), *controller_options]
    with start(topology, controller_options=controller, **options) as network:
        return inject(network, fault)


def test_a_killed_worker_ends_its_job(start: Start) -> None:
    assert violations(FAULTS["worker-killed"], ends(start, FAULTS["worker-killed"])) == []


HOST_OF_THE_CONTROLLER = "10.255.255.254"
SHAPES = {"tree": {"fan_out": 2}}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "target"), [("tree", "sim"), *((name, "native") for name in TOPOLOGIES), ("tree", "bmv2")]
)
def test_every_fault_ends_well_on_every_topology_and_target(start: Start, name: str, target: str) -> None:
    """All faults run on one network, each in a job of its own. Its damage is repaired before the next one."""
    if target == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("needs simple_switch_grpc")
    made = TOPOLOGIES[name].build(
        2, LinkProperties(delay=1e-6), **SHAPES.get(name, {})
    )  # every host's link can be changed
    plain = with_extra_host(made, made.workers[VICTIM])
    wrong = {}
    with start(plain, target, controller_options=["--lease", str(LEASE_S)]) as network:
        for fault_name, fault in FAULTS.items():
            if fault.needs_outsider and name == "leaf-spine":
                with pytest.raises(P4ReduceError, match="leaf2, where h2 is, only forwards, so spine1 hears all hosts"):
                    prepare_topology(fault, plain)
                continue
            network.change_impairments(prepare_topology(fault, plain))
            try:
                calls = 20 if fault.pause == Fault.pause else 80  # so that the ranks still reduce after what is done
                wrong[fault_name] = violations(fault, inject(network, fault, job=fault_name, calls=calls))
            except (P4ReduceError, ValueError) as error:
                wrong[fault_name] = [str(error)]
            network.change_impairments(plain)
            network.partition_controller(plain.workers, cut=False)
            deadline = time.monotonic() + 30
            for worker in plain.workers:  # the kernel remembers for a while that nobody answered
                while " 0% packet loss" not in network.mininet[worker].cmd(f"ping -c 1 {HOST_OF_THE_CONTROLLER}"):
                    assert time.monotonic() < deadline
            for child in [child for child in network.processes.children if child.name == "forger"]:
                network.stop(child)
            if network.controller is None:
                network.start_controller()
    assert {fault_name: said for fault_name, said in wrong.items() if said} == {}
    assert wrong


@pytest.mark.parametrize("name", [name for name in TOPOLOGIES if name != "leaf-spine"])
def test_a_host_that_forges_is_added_where_there_is_none(name: str) -> None:
    made = TOPOLOGIES[name].build(4)
    ready = prepare_topology(FAULTS["forged"], made)
    assert outsider(ready) not in made.workers
    assert ready.workers == made.workers
    assert prepare_topology(FAULTS["forged"], ready) == ready


def test_a_fault_needs_a_second_worker() -> None:
    with pytest.raises(P4ReduceError, match="a fault on star with 1 worker: accepted are 2 workers or more"):
        prepare_topology(FAULTS["worker-killed"], star.build(1))


def comes_out_wrong(start: Start, name: str, **options: Any) -> list[str]:
    """Return what is wrong with the run of a fault: its verdict, or that a rank did not end in time."""
    try:
        return violations(FAULTS[name], ends(start, FAULTS[name], **options))
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
