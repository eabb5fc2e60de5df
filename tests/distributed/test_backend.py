# SPDX-License-Identifier: Apache-2.0
"""The backend under torchrun, on real switches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.device_mesh import init_device_mesh

from p4reduce import JoinError, UnsupportedDtype
from p4reduce.distributed import Options
from tests.distributed.torchrun import RANKS, ROOT, names, passed, torchrun
from tests.support.cluster.stack import Stack
from tests.support.free_ports import free_ports


@pytest.mark.parametrize("engine", ["c", pytest.param("python", marks=pytest.mark.slow)])
def test_every_collective(stack: Stack, engine: str) -> None:
    from .collectives import CHECKS

    events = torchrun("collectives", controller=stack.controller, environment={"P4REDUCE_BACKEND": engine})
    assert passed(events) == [names(CHECKS)] * RANKS


@pytest.mark.parametrize("local", ["off", "auto"])
def test_tensors_on_a_device(native_stack: Stack, local: str) -> None:
    from .on_device import CHECKS

    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    events = torchrun("on_device", controller=native_stack.controller, environment={"P4REDUCE_LOCAL": local})
    assert passed(events) == [names(CHECKS)] * RANKS


@pytest.mark.slow
def test_training(native_stack: Stack, tmp_path: Path) -> None:
    # PowerSGD of some releases asks for the CUDA device of tensors on the host, where there is one.
    without = {"CUDA_VISIBLE_DEVICES": ""}
    events = torchrun("training", str(tmp_path), controller=native_stack.controller, environment=without)
    ddp = ["DDP", "DDP, sparse gradients", "DDP, sparse gradients, hook", "PowerSGD", "uneven inputs"]
    others = ["gradient scaler", "FSDP2", "checkpoint", "DDP, compiled", "DDP, compiled, hook"]
    assert passed(events) == [ddp + others] * RANKS


@pytest.mark.slow
def test_failures(native_stack: Stack) -> None:
    from .failures import CHECKS

    events = torchrun("failures", controller=native_stack.controller)
    assert passed(events) == [names(CHECKS)] * RANKS


def test_waiting_holds_up_nothing_else(native_stack: Stack) -> None:
    from .waits import CHECKS

    events = torchrun("waits", controller=native_stack.controller)
    assert passed(events) == [names(CHECKS)] * RANKS


@pytest.mark.slow
def test_groups_that_find_no_slots_go_through_gloo(native_stack: Stack) -> None:
    events = torchrun("exhausted", controller=native_stack.controller)
    assert sorted(event["rank"] for event in events) == list(range(RANKS))
    assert [event["warnings"] for event in sorted(events, key=lambda event: event["rank"])] == [2, 0]


@pytest.fixture
def begin(native_stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Yield a function that begins the default group, of this process alone. The group ends after the test."""
    monkeypatch.setenv("P4REDUCE_CONTROLLER", native_stack.controller)

    def init(backend: str = "p4reduce", **options: Any) -> None:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, **options)

    yield init
    if dist.is_initialized():
        dist.destroy_process_group()


def slots_of(group: Any) -> int:
    """Reduce a tensor, and return the number of the job's slots after that."""
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [1.0] * 3
    return int(group.communicator()._running.membership.slots)


def test_a_controller_that_is_not_there_is_named(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_CONTROLLER", "127.0.0.1:9")
    monkeypatch.setattr("p4reduce.join.joining.CONNECT_TIMEOUT_S", 0.5)
    with pytest.raises(dist.DistBackendError, match=r"JoinError: .*127\.0\.0\.1:9") as raised:
        begin()
    assert isinstance(raised.value.__cause__, JoinError)


def test_wrong_options_are_refused(begin: Any) -> None:
    with pytest.raises(TypeError, match=r"pg_options is a dict: accepted is p4reduce\.distributed\.Options"):
        begin(pg_options={})


def test_options_are_the_communicators(begin: Any, native_stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_CONTROLLER", "nowhere:1")
    begin(pg_options=Options(controller=native_stack.controller, slots=3))
    assert slots_of(dist.group.WORLD) == 3


def test_a_dimension_of_a_device_mesh_has_options(begin: Any) -> None:
    begin("gloo")
    override: Any = {"replicate": ("p4reduce", Options(slots=3))}
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"), backend_override=override)
    assert slots_of(mesh.get_group("replicate")) == 3


def test_torch_knows_the_backend_and_pays_nothing_for_it() -> None:
    program = """
import sys, torch, torch.distributed as dist
print("p4reduce" in dist.Backend.backend_list)
print([name for name in ("grpc", "p4reduce.api.communicator", "p4reduce.fastpath") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n") == ["True", "[]", ""]


def test_groups_of_other_backends_are_as_without_it(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds before and after one of our groups."""
    # PyTorch's tests register a backend "fake", which stays: then groups of several backends have no default.
    monkeypatch.setattr(dist.Backend, "_plugins", type(dist.Backend._plugins)())  # type: ignore[attr-defined]

    def check_other() -> None:
        group = dist.new_group([0], backend="cpu:gloo,cuda:gloo")
        dist.all_reduce(torch.ones(3), group=group)
        dist.barrier(group=group)
        assert (group.name(), group._get_sequence_number_for_group()) == ("gloo", 2)

    begin("cpu:gloo,cuda:gloo")
    check_other()
    for name in ("p4reduce", "cpu:p4reduce"):
        ours: Any = dist.new_group([0], backend=name)
        dist.all_reduce(torch.ones(3), group=ours)
        assert (ours.name(), dist.Backend.P4REDUCE) == ("p4reduce", "p4reduce")  # type: ignore[attr-defined]
        assert torch.cuda.is_available() or [device.type for device in ours._device_types] == ["cpu"]
    check_other()


def test_a_sharded_tensor_is_gathered(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # it would gather there, also what is on the host
    begin()
    sharded = sharded_tensor.ones(ChunkShardingSpec(0, ["rank:0/cpu"]), 4)
    sharded.gather(0, out := torch.zeros(4))
    assert out.tolist() == [1.0] * 4


def test_what_is_refused_names_the_argument(begin: Any) -> None:
    begin()
    for dtype in (torch.int16, torch.uint16, torch.float8_e5m2):
        tensor, name = torch.zeros(4, dtype=dtype), str(dtype).removeprefix("torch.")
        with pytest.raises(UnsupportedDtype, match=f"all_reduce of {name}: neither the switch nor Gloo"):
            dist.all_reduce(tensor)
        with pytest.raises(UnsupportedDtype, match=f"gather of {name}: neither"):
            dist.gather(tensor, [tensor.clone()])
    for dtype in (torch.float32, torch.float64):
        four = torch.ones(4, dtype=dtype)
        with pytest.raises(ValueError, match="output_tensor has 5 elements: accepted are 4, for each of 1 ranks the 4"):
            dist.all_gather_into_tensor(torch.ones(5, dtype=dtype), four)
        with pytest.raises(ValueError, match=f"output_tensor is torch.int32: accepted is {dtype}, which input"):
            dist.all_gather_into_tensor(torch.ones(4, dtype=torch.int32), four)
        with pytest.raises(ValueError, match="input has 4 elements: accepted are 3, for each of 1 ranks the 3"):
            dist.reduce_scatter_tensor(torch.ones(3, dtype=dtype), four)


@pytest.mark.slow
def test_calls_leave_nothing_to_the_collector(native_stack: Stack) -> None:
    events = torchrun("garbage", controller=native_stack.controller)
    first, second = passed(events)
    assert first == second
    assert first[-1] == "hierarchical_hook"


@pytest.mark.parametrize("groups", [12, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_groups_that_fail_are_made_again(native_stack: Stack, tmp_path: Path, groups: int) -> None:
    environment = {
        **os.environ, "P4REDUCE_CONTROLLER": native_stack.controller, "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0]), "WORLD_SIZE": str(RANKS),
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.distributed.again", str(groups)]
    errors = [tmp_path / f"errors-{rank}" for rank in range(RANKS)]  # PyTorch writes more than a pipe holds
    ranks = [
        subprocess.Popen(
            command, cwd=ROOT, env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=file.open("w"), text=True,
        )
        for rank, file in enumerate(errors)
    ]  # fmt: skip
    try:
        for rank, file in zip(ranks, errors, strict=True):
            said, _ = rank.communicate(timeout=500)
            assert rank.returncode == 0, file.read_text()[-4000:]
            events = [json.loads(line) for line in said.splitlines()]
            assert len(events) == groups
            assert all(event["right"] for event in events)
            assert not any(event["left"] for event in events)
            early, late = events[3], events[-1]
            assert late["threads"] <= early["threads"] + 2
            assert late["descriptors"] <= early["descriptors"] + 2
            assert late["heap"] < early["heap"] + (1 << 20)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
