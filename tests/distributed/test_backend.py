# SPDX-License-Identifier: Apache-2.0
"""The backend under torchrun, on real switches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import Stack

from .conftest import RANKS, torchrun


@pytest.mark.parametrize("engine", ["c", pytest.param("python", marks=pytest.mark.slow)])
def test_every_collective(stack: Stack, engine: str) -> None:
    from .collectives import CHECKS

    events = torchrun("collectives.py", controller=stack.controller, environment={"P4REDUCE_BACKEND": engine})
    passed = sorted((event["rank"], event["passed"]) for event in events)
    assert passed == sorted((rank, function.__name__) for rank in range(RANKS) for function in CHECKS)


@pytest.mark.parametrize("local", ["off", "auto"])
def test_tensors_on_a_device(native_stack: Stack, local: str) -> None:
    import torch

    from .on_device import CHECKS

    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    events = torchrun("on_device.py", controller=native_stack.controller, environment={"P4REDUCE_LOCAL": local})
    passed = sorted((event["rank"], event["passed"]) for event in events)
    assert passed == sorted((rank, function.__name__) for rank in range(RANKS) for function in CHECKS)


@pytest.mark.slow
def test_training(native_stack: Stack, tmp_path: Path) -> None:
    # PowerSGD of some releases asks for the CUDA device of tensors on the host, where there is one.
    without = {"CUDA_VISIBLE_DEVICES": ""}
    events = torchrun("training.py", str(tmp_path), controller=native_stack.controller, environment=without)
    ddp = [
        "DDP",
        "DDP, sparse gradients",
        "DDP, sparse gradients, hook",
        "PowerSGD",
        "uneven inputs",
        "gradient scaler",
    ]
    kinds = [*ddp, "FSDP2", "checkpoint", "DDP, compiled", "DDP, compiled, hook"]
    passed = sorted((event["rank"], event["passed"]) for event in events)
    assert passed == sorted((rank, kind) for rank in range(RANKS) for kind in kinds)


@pytest.mark.slow
def test_failures(native_stack: Stack) -> None:
    events = torchrun("failures.py", controller=native_stack.controller)
    first = ["mismatch", "future", "result", "timeout", "afterwards", "wait", "DDP", "the other groups"]
    second = ["mismatch", "future", "result", "the other groups"]
    assert [event["passed"] for event in events if event["rank"] == 0] == first
    assert [event["passed"] for event in events if event["rank"] == 1] == second


def test_waiting_holds_up_nothing_else(native_stack: Stack) -> None:
    from .waits import CHECKS

    events = torchrun("waits.py", controller=native_stack.controller)
    passed = sorted((event["rank"], event["passed"]) for event in events)
    assert passed == sorted((rank, function.__name__) for rank in range(RANKS) for function in CHECKS)


def test_groups_that_find_no_slots_go_through_gloo(native_stack: Stack) -> None:
    events = torchrun("exhausted.py", controller=native_stack.controller)
    assert sorted(event["rank"] for event in events) == list(range(RANKS))
    assert [event["warnings"] for event in sorted(events, key=lambda event: event["rank"])] == [2, 0]


def alone(program: str, **environment: str) -> str:
    """Runs a program as the only rank, and returns what it printed on both of its outputs."""
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **place, **environment}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


STORE = "store = dist.TCPStore('127.0.0.1', 0, 1, is_master=True); "


def test_a_controller_that_is_not_there_is_named() -> None:
    program = f"""
import torch, torch.distributed as dist
{STORE}
try:
    dist.init_process_group("p4reduce", store=store, rank=0, world_size=1)
except dist.DistBackendError as error:
    print(f"{{type(error.__cause__).__name__}}: {{error}}")
"""
    said = alone(program, P4REDUCE_CONTROLLER="127.0.0.1:9")
    assert "JoinError: JoinError: " in said
    assert "127.0.0.1:9" in said


def test_wrong_options_are_refused() -> None:
    program = f"""
import torch, torch.distributed as dist
{STORE}
dist.init_process_group("p4reduce", store=store, rank=0, world_size=1, pg_options={{}})
"""
    assert "pg_options is a dict: accepted is p4reduce.distributed.Options" in alone(program)


def test_options_are_the_communicators(native_stack: Stack) -> None:
    program = f"""
import torch, torch.distributed as dist
from p4reduce.distributed import Options
{STORE}
options = Options(controller={native_stack.controller!r}, slots=3)
dist.init_process_group("p4reduce", store=store, rank=0, world_size=1, pg_options=options)
tensor = torch.ones(3)
dist.all_reduce(tensor)
print(tensor.tolist(), dist.group.WORLD.communicator()._seat.membership.slots, "slots")
dist.destroy_process_group()
"""
    assert "[1.0, 1.0, 1.0] 3 slots" in alone(program, P4REDUCE_CONTROLLER="nowhere:1")


def test_a_dimension_of_a_device_mesh_has_options(native_stack: Stack) -> None:
    program = f"""
import torch, torch.distributed as dist
from p4reduce.distributed import Options
from torch.distributed.device_mesh import init_device_mesh
{STORE}
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
override = {{"replicate": ("p4reduce", Options(slots=3))}}
mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"), backend_override=override)
tensor = torch.ones(3)
dist.all_reduce(tensor, group=mesh.get_group("replicate"))
print(tensor.tolist(), mesh.get_group("replicate").communicator()._seat.membership.slots, "slots")
dist.destroy_process_group()
"""
    assert "[1.0, 1.0, 1.0] 3 slots" in alone(program, P4REDUCE_CONTROLLER=native_stack.controller)


def test_torch_knows_the_backend_and_pays_nothing_for_it() -> None:
    program = """
import sys, torch, torch.distributed as dist
print("known", "p4reduce" in dist.Backend.backend_list)
modules = ("grpc", "p4reduce.api.communicator", "p4reduce.fastpath")
print("loaded", sorted(name for name in modules if name in sys.modules))
"""
    said = alone(program, P4REDUCE_CONTROLLER="nowhere:1")
    assert "known True" in said
    assert "loaded []" in said


def test_groups_of_other_backends_are_as_without_it(native_stack: Stack) -> None:
    """Before and after one of ours."""
    program = f"""
import torch, torch.distributed as dist
{STORE}
def others():
    group = dist.new_group([0], backend="cpu:gloo,cuda:gloo")
    dist.all_reduce(torch.ones(3), group=group)
    dist.barrier(group=group)
    print("other:", group.name(), group._get_sequence_number_for_group())
dist.init_process_group("cpu:gloo,cuda:gloo", store=store, rank=0, world_size=1)
others()
for name in "p4reduce", "cpu:p4reduce":
    group = dist.new_group([0], backend=name)
    dist.all_reduce(torch.ones(3), group=group)
    print("ours:", group.name(), [device.type for device in group._device_types], dist.Backend.P4REDUCE)
others()
print("cuda", torch.cuda.is_available())
dist.destroy_process_group()
"""
    said = alone(program, P4REDUCE_CONTROLLER=native_stack.controller)
    assert said.count("other: gloo 2") == 2, said
    assert "ours: p4reduce ['cpu'] p4reduce" in said or "cuda True" in said, said
    assert said.count("ours: p4reduce") == 2, said
    assert "Warning" not in said


def test_a_sharded_tensor_is_gathered(native_stack: Stack) -> None:
    program = f"""
import torch, torch.distributed as dist
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
{STORE}
dist.init_process_group("p4reduce", store=store, rank=0, world_size=1)
sharded = sharded_tensor.ones(ChunkShardingSpec(0, ["rank:0/cpu"]), 4)
out = torch.zeros(4)
sharded.gather(0, out)
print("gathered", out.tolist())
dist.destroy_process_group()
"""
    # It gathers on a CUDA device where there is one, also what is on the host.
    said = alone(program, P4REDUCE_CONTROLLER=native_stack.controller, CUDA_VISIBLE_DEVICES="")
    assert "gathered [1.0, 1.0, 1.0, 1.0]" in said, said


def test_what_is_refused_names_the_argument(native_stack: Stack) -> None:
    program = f"""
import torch, torch.distributed as dist
{STORE}
dist.init_process_group("p4reduce", store=store, rank=0, world_size=1)
def refused(name, call, *arguments):
    try:
        call(*arguments)
    except Exception as error:
        print(name, type(error).__name__, error)
for dtype in torch.int16, torch.uint16, torch.float8_e5m2:
    tensor = torch.zeros(4, dtype=dtype)
    refused("sum:", dist.all_reduce, tensor)
    refused("gather:", dist.gather, tensor, [tensor.clone()])
for dtype in torch.float32, torch.float64:
    four = torch.ones(4, dtype=dtype)
    refused("all-gather:", dist.all_gather_into_tensor, torch.ones(5, dtype=dtype), four)
    refused("all-gather:", dist.all_gather_into_tensor, torch.ones(4, dtype=torch.int32), four)
    refused("scatter:", dist.reduce_scatter_tensor, torch.ones(3, dtype=dtype), four)
dist.destroy_process_group()
"""
    said = alone(program, P4REDUCE_CONTROLLER=native_stack.controller)
    for dtype in ("int16", "uint16", "float8_e5m2"):
        assert f"sum: UnsupportedDtype all_reduce of {dtype}: neither the switch nor Gloo" in said, said
        assert f"gather: UnsupportedDtype gather of {dtype}: neither" in said, said
    sizes = (
        "all-gather: ValueError output_tensor has 5 elements: accepted are 4, for each of 1 ranks the 4 of input_tensor"
    )
    assert said.count(sizes) == 2, said
    for dtype in ("float32", "float64"):
        wrong = f"output_tensor is torch.int32: accepted is torch.{dtype}, which input_tensor is"
        assert f"all-gather: ValueError {wrong}" in said, said
    assert (
        said.count("scatter: ValueError input has 4 elements: accepted are 3, for each of 1 ranks the 3 of output") == 2
    )
