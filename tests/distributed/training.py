# SPDX-License-Identifier: Apache-2.0
"""Trainings on the backend, under torchrun.

These are DDP with sparse gradients, with hooks that wait and with uneven inputs, FSDP2, a checkpoint, and DDP under
torch.compile. Each is trained beside a model of one process that sees the batches of all ranks. Prints a JSON object
for each that ended with the same parameters. Argument: a folder for the checkpoint.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from p4reduce import Communicator
from p4reduce.ddp import (
    AllreduceState,
    BlockRandomKState,
    BlockThresholdState,
    BlockTopKState,
    ElementTopKState,
    Int8State,
    allreduce_hook,
    block_randomk_hook,
    block_threshold_hook,
    block_topk_hook,
    element_topk_hook,
    fp16_wrapper,
    int8_hook,
)

from .saying import say


def plain_state(communicator: Communicator, _: object) -> AllreduceState:
    return AllreduceState(communicator)


HOOKS: list[tuple[Any, Any]] = [
    (plain_state, allreduce_hook),
    (plain_state, fp16_wrapper(allreduce_hook)),
    (BlockTopKState, block_topk_hook),
    (ElementTopKState, element_topk_hook),
    (lambda communicator, network: BlockThresholdState(communicator, network, threshold=0.01), block_threshold_hook),
    (BlockRandomKState, block_randomk_hook),
    (Int8State, int8_hook),
]
STEPS, BATCH, WORDS, WIDTH = 5, 8, 500, 16


class Model(torch.nn.Module):
    """A network that maps word numbers of shape (batch, 4) to one number for each row."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.hidden = torch.nn.Linear(4 * WIDTH, 32)
        self.out = torch.nn.Linear(32, 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = torch.relu(self.hidden(self.embedding(words).flatten(1)))
        return torch.as_tensor(self.out(hidden))


def model(sparse: bool = False) -> Model:
    torch.manual_seed(1)
    return Model(sparse)


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (BATCH, 4), generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(network: Any, words: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor((network(words).squeeze(1) - words.float().mean(1) / WORDS).square().mean())


def train(network: Any, batch_of: Callable[[int], torch.Tensor]) -> None:
    """Train the network with the batches that `batch_of` returns for each step."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(network, batch_of(step)).backward()
        optimizer.step()


def alone(size: int) -> dict[str, torch.Tensor]:
    """Return the parameters of a model that one process has trained with the batches of all ranks."""
    network = model()
    train(network, lambda step: torch.cat([batch(step, rank) for rank in range(size)]))
    return dict(network.state_dict())


@contextlib.contextmanager
def hooked(
    what: str, network: DistributedDataParallel, make: Callable[..., Any] = plain_state, hook: Any = allreduce_hook
) -> Iterator[DistributedDataParallel]:
    """Yield the network with a hook, whose communicator has a job of its own."""
    with Communicator(job=f"{what} of {dist.group.WORLD.communicator()._options.job}") as communicator:
        network.register_comm_hook(make(communicator, network), hook)
        yield network


def compare(what: str, got: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
    start = model().state_dict()
    for name, tensor in expected.items():
        assert not torch.equal(tensor, start[name]), "training changes every parameter"
        torch.testing.assert_close(got[name], tensor, rtol=1e-5, atol=1e-6)
    same_everywhere(what, got)


def same_everywhere(what: str, got: dict[str, Any]) -> None:
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, [tensor.tolist() for tensor in got.values()])
    assert all(one == everyone[0] for one in everyone), "all ranks have the same bits"
    say({"rank": dist.get_rank(), "passed": what})


def uneven(rank: int) -> None:
    """Train ranks with different numbers of batches, with each kind of hook. The last rank has the most."""
    for number, (make, hook) in enumerate(HOOKS):
        with hooked(f"uneven {number}", DistributedDataParallel(model(), bucket_cap_mb=0.01), make, hook) as network:
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
            with Join([network]):
                for step in range(2 + 2 * rank):
                    optimizer.zero_grad()
                    loss_of(network, batch(step, rank)).backward()
                    optimizer.step()
    same_everywhere("uneven inputs", network.module.state_dict())


def scaled(rank: int) -> None:
    """Train with a gradient scaler, which sees an infinity in one rank's gradients on every rank."""
    with hooked("scaled", DistributedDataParallel(model())) as network:
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step, (infinite, scale) in enumerate(((False, 1024.0), (True, 512.0), (False, 512.0))):
            before = network.module.out.weight.detach().clone()
            optimizer.zero_grad()
            loss = loss_of(network, batch(step, rank))
            scaler.scale(loss * (float("inf") if infinite and rank == 0 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            assert scaler.get_scale() == scale
            assert torch.equal(network.module.out.weight, before) == infinite
    same_everywhere("gradient scaler", network.module.state_dict())


def main() -> None:
    dist.init_process_group("p4reduce")
    rank, size = dist.get_rank(), dist.get_world_size()
    expected = alone(size)

    def train_and_compare(what: str, network: Any, trained: Any = None) -> None:
        train(network if trained is None else trained, lambda step: batch(step, rank))
        compare(what, network.module.state_dict(), expected)

    train_and_compare("DDP", DistributedDataParallel(model()))
    network = DistributedDataParallel(model(sparse=True))
    train_and_compare("DDP, sparse gradients", network)
    assert network.module.embedding.weight.grad.layout == torch.sparse_coo
    with hooked("sparse", DistributedDataParallel(model(sparse=True))) as network:
        train_and_compare("DDP, sparse gradients, hook", network)

    network = DistributedDataParallel(model(), bucket_cap_mb=0.01)
    network.register_comm_hook(
        PowerSGDState(None, matrix_approximation_rank=WIDTH, start_powerSGD_iter=2), powerSGD_hook
    )
    train(network, lambda step: batch(step, rank))  # whose continuations wait for collectives
    same_everywhere("PowerSGD", network.module.state_dict())

    uneven(rank)
    scaled(rank)

    mesh = init_device_mesh("cpu", (size,))

    def sharded() -> Any:
        made = model()
        for module in (made.embedding, made.hidden, made.out, made):
            fully_shard(module, mesh=mesh)
        return made

    def compare_sharded(what: str, network: Any) -> None:
        compare(what, {name: part.full_tensor() for name, part in network.state_dict().items()}, expected)

    trained = sharded()
    train(trained, lambda step: batch(step, rank))
    compare_sharded("FSDP2", trained)
    checkpoint.save({"model": trained.state_dict()}, checkpoint_id=sys.argv[1])
    restored = sharded()
    state = {"model": restored.state_dict()}
    checkpoint.load(state, checkpoint_id=sys.argv[1])
    restored.load_state_dict(state["model"])
    compare_sharded("checkpoint", restored)

    network = DistributedDataParallel(model())
    train_and_compare("DDP, compiled", network, torch.compile(network, backend="aot_eager"))
    with hooked("compiled", DistributedDataParallel(model())) as network:
        train_and_compare("DDP, compiled, hook", network, torch.compile(network, backend="aot_eager"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
