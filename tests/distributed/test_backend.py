# SPDX-License-Identifier: Apache-2.0
"""The backend under torchrun, on real switches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.torchrun import RANKS, ROOT, free_port, names, passed, torchrun
from tests.support.cluster.stack import Stack


@pytest.mark.parametrize("engine", ["c", pytest.param("python", marks=pytest.mark.slow)])
def test_every_collective(stack: Stack, engine: str) -> None:
    from .collectives import CHECKS

    events = torchrun("collectives", controller=stack.controller, environment={"P4REDUCE_BACKEND": engine})
    assert passed(events) == [names(CHECKS)] * RANKS


@pytest.mark.parametrize("local", ["off", "auto"])
def test_tensors_on_a_device(native_stack: Stack, local: str) -> None:
    import torch

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
    ddp = [
        "DDP",
        "DDP, sparse gradients",
        "DDP, sparse gradients, hook",
        "PowerSGD",
        "uneven inputs",
        "gradient scaler",
    ]
    assert passed(events) == [[*ddp, "FSDP2", "checkpoint", "DDP, compiled", "DDP, compiled, hook"]] * RANKS


@pytest.mark.slow
def test_failures(native_stack: Stack) -> None:
    events = torchrun("failures", controller=native_stack.controller)
    first = ["mismatch", "future", "result", "timeout", "afterwards", "wait", "DDP", "the other groups"]
    assert passed(events) == [first, ["mismatch", "future", "result", "the other groups"]]


def test_waiting_holds_up_nothing_else(native_stack: Stack) -> None:
    from .waits import CHECKS

    events = torchrun("waits", controller=native_stack.controller)
    assert passed(events) == [names(CHECKS)] * RANKS


def test_groups_that_find_no_slots_go_through_gloo(native_stack: Stack) -> None:
    events = torchrun("exhausted", controller=native_stack.controller)
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


BEGIN = """
import torch, torch.distributed as dist
store = dist.TCPStore('127.0.0.1', 0, 1, is_master=True)
"""


def test_a_controller_that_is_not_there_is_named() -> None:
    program = f"""{BEGIN}
try:
    dist.init_process_group("p4reduce", store=store, rank=0, world_size=1)
except dist.DistBackendError as error:
    print(f"{{type(error.__cause__).__name__}}: {{error}}")
"""
    said = alone(program, P4REDUCE_CONTROLLER="127.0.0.1:9")
    assert "JoinError: JoinError: " in said
    assert "127.0.0.1:9" in said


def test_wrong_options_are_refused() -> None:
    program = f"""{BEGIN}
dist.init_process_group("p4reduce", store=store, rank=0, world_size=1, pg_options={{}})
"""
    assert "pg_options is a dict: accepted is p4reduce.distributed.Options" in alone(program)


def test_options_are_the_communicators(native_stack: Stack) -> None:
    program = f"""{BEGIN}
from p4reduce.distributed import Options
options = Options(controller={native_stack.controller!r}, slots=3)
dist.init_process_group("p4reduce", store=store, rank=0, world_size=1, pg_options=options)
tensor = torch.ones(3)
dist.all_reduce(tensor)
print(tensor.tolist(), dist.group.WORLD.communicator()._running.membership.slots, "slots")
dist.destroy_process_group()
"""
    assert "[1.0, 1.0, 1.0] 3 slots" in alone(program, P4REDUCE_CONTROLLER="nowhere:1")


def test_a_dimension_of_a_device_mesh_has_options(native_stack: Stack) -> None:
    program = f"""{BEGIN}
from p4reduce.distributed import Options
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
override = {{"replicate": ("p4reduce", Options(slots=3))}}
mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"), backend_override=override)
tensor = torch.ones(3)
dist.all_reduce(tensor, group=mesh.get_group("replicate"))
print(tensor.tolist(), mesh.get_group("replicate").communicator()._running.membership.slots, "slots")
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
    program = f"""{BEGIN}
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
    program = f"""{BEGIN}
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
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
    program = f"""{BEGIN}
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


def test_calls_leave_nothing_to_the_collector(native_stack: Stack) -> None:
    events = torchrun("garbage", controller=native_stack.controller)
    first, second = passed(events)
    assert first == second
    assert first[-1] == "hierarchical_hook"


@pytest.mark.parametrize("groups", [12, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_groups_that_fail_are_made_again(native_stack: Stack, tmp_path: Path, groups: int) -> None:
    environment = {
        **os.environ, "P4REDUCE_CONTROLLER": native_stack.controller, "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS),
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.distributed.again", str(groups)]
    errors = [tmp_path / f"errors-{rank}" for rank in range(RANKS)]  # PyTorch writes more than a pipe holds
    ranks = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=file.open("w"),
            text=True,
        )
        for rank, file in enumerate(errors)
    ]
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
