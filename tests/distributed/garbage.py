# SPDX-License-Identifier: Apache-2.0
"""Under torchrun, with the garbage collector off: no call keeps a tensor alive that it was given.

Prints a JSON object for each kind of call that passed.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from p4reduce import Communicator, ddp

from .saying import say

STEPS = 4

Call = Callable[[torch.Tensor, int], Any]


CALLS: dict[str, Call] = {
    "all_reduce": lambda tensor, _: dist.all_reduce(tensor),
    "all_reduce, async": lambda tensor, _: dist.all_reduce(tensor, async_op=True).wait(),
    "all_reduce, future": lambda tensor, _: dist.all_reduce(tensor, async_op=True).get_future().then(_value).wait(),
    "all_reduce by Gloo": lambda tensor, _: dist.all_reduce(tensor.double()),
    "all_reduce, sparse": lambda tensor, _: dist.all_reduce(tensor.to_sparse()),
    "all_reduce_coalesced": lambda tensor, _: dist.all_reduce_coalesced([tensor, tensor.clone()]),
    "maximum": lambda tensor, _: dist.all_reduce(tensor, dist.ReduceOp.MAX),
    "premultiplied": lambda tensor, _: dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5)),
    "reduce": lambda tensor, _: dist.reduce(tensor, 0),
    "broadcast": lambda tensor, _: dist.broadcast(tensor, 0),
    "all_gather": lambda tensor, size: dist.all_gather([torch.empty_like(tensor) for _ in range(size)], tensor),
    "all_gather_into_tensor": lambda tensor, size: dist.all_gather_into_tensor(tensor.repeat(size), tensor),
    "reduce_scatter": lambda tensor, size: dist.reduce_scatter(tensor, [tensor.clone() for _ in range(size)]),
    "reduce_scatter_tensor": lambda tensor, size: dist.reduce_scatter_tensor(tensor, tensor.repeat(size)),
    "all_to_all_single": lambda tensor, size: dist.all_to_all_single(tensor.repeat(size), tensor.repeat(size)),
    "barrier": lambda *_: dist.barrier(),
    "all_gather_object": lambda tensor, size: dist.all_gather_object([None] * size, tensor),
}


def _value(future: torch.futures.Future[Any]) -> Any:
    return future.value()


def left_to_collector() -> list[str]:
    """Return the types of our objects, functions and tensors that only the garbage collector would free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found, gc.garbage[:] = list(gc.garbage), []
    modules = [getattr(one, "__module__", None) or "" for one in found]
    return [
        type(one).__name__
        for one, module in zip(found, modules, strict=True)
        if isinstance(one, torch.Tensor) or str(module).startswith("p4reduce")
    ]


def check(name: str, step: Callable[[], Any]) -> None:
    step()
    left_to_collector()
    gc.freeze()  # what there is by now, which takes the collector long to look at
    for _ in range(STEPS):
        step()
    dist.barrier()
    left = left_to_collector()
    assert left == [], (name, left)
    say({"rank": dist.get_rank(), "passed": name})


def check_calls(size: int) -> None:
    for name, call in CALLS.items():
        known: list[weakref.ref[torch.Tensor]] = []

        def step() -> None:
            tensor = torch.ones(64)
            known.append(weakref.ref(tensor))  # noqa: B023 # it is called before the next
            call(tensor, size)  # noqa: B023

        check(name, step)
        deadline = time.monotonic() + 30  # for threads that complete calls
        while any(each() is not None for each in known) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert all(each() is None for each in known), name


def check_training(name: str, prepare: Callable[[Any], object] = lambda _: None, *, sparse: bool = False) -> None:
    table = torch.nn.Embedding(64, 64, sparse=sparse)
    network = DistributedDataParallel(table)
    prepare(network)

    def step() -> None:
        table.weight.grad = None
        network(torch.arange(8)).sum().backward()

    check(name, step)


def check_hooks(communicator: Communicator) -> None:
    states: dict[str, Callable[[Any], Any]] = {
        "allreduce_hook": lambda _: ddp.AllreduceState(communicator),
        "block_topk_hook": lambda network: ddp.BlockTopKState(communicator, network),
        "element_topk_hook": lambda network: ddp.ElementTopKState(communicator, network),
        "block_threshold_hook": lambda network: ddp.BlockThresholdState(communicator, network, threshold=0.1),
        "block_randomk_hook": lambda network: ddp.BlockRandomKState(communicator, network),
        "int8_hook": lambda network: ddp.Int8State(communicator, network),
    }
    for name, state in states.items():
        hook = getattr(ddp, name)
        check_training(name, lambda network: network.register_comm_hook(state(network), hook))  # noqa: B023
    check_training(
        "allreduce_hook, sparse",
        lambda network: network.register_comm_hook(ddp.AllreduceState(communicator), ddp.allreduce_hook),
        sparse=True,
    )


def make_a_group() -> None:
    group = dist.new_group(list(range(dist.get_world_size())))
    dist.all_reduce(torch.ones(4), group=group)
    dist.destroy_process_group(group)


def make_a_communicator() -> None:
    with Communicator(job="garbage, made again") as communicator:
        communicator.allreduce(torch.ones(4))


def main() -> None:
    dist.init_process_group("p4reduce")
    gc.disable()
    check_calls(dist.get_world_size())
    check_training("DDP")
    check_training("DDP, sparse", sparse=True)
    check("groups", make_a_group)
    check("communicators", make_a_communicator)
    with Communicator(job="garbage") as communicator:
        check_hooks(communicator)
    state = ddp.HierarchicalState.of_hosts(job="garbage")
    check_training("hierarchical_hook", lambda network: network.register_comm_hook(state, ddp.hierarchical_hook))
    assert state.communicator is not None
    state.communicator.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
