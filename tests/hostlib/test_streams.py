# SPDX-License-Identifier: Apache-2.0
"""Order in which streams read and write CUDA tensors, with a model of a device and one of the switch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from p4reduce import Communicator
from p4reduce.collectives.moves import all_gather_apart
from p4reduce.errors import CollectiveTimeout, P4ReduceError
from tests.support.hostlib.in_process import error_of, together
from tests.support.waiting import wait_until

torch = pytest.importorskip("torch", reason="needs torch")

from .fake_cuda import Cuda, Stream, fake_cuda  # noqa: E402

OLD = 5.0  # what stands where results come

Start = Callable[[Communicator, Any, Any], Any]
COLLECTIVES: dict[str, tuple[Start, Callable[[list[Any]], list[Any]]]] = {
    # Each entry has two functions. One starts the collective on a rank's tensor of shape (2, 70), with an `out` of the
    # shape that it needs. The other one computes the ranks' results from their tensors.
    "allreduce": (lambda each, tensor, _: each.allreduce_async(tensor), lambda all_: [sum(all_)] * 2),
    "factor": (lambda each, tensor, _: each.allreduce_async(tensor, factor=2.0), lambda all_: [2 * sum(all_)] * 2),
    "max": (lambda each, tensor, _: each.allreduce_async(tensor, "max"), lambda all_: [np.maximum(*all_)] * 2),
    "reduce": (lambda each, tensor, _: each.reduce_async(tensor, 1), lambda all_: [all_[0], sum(all_)]),
    "broadcast": (lambda each, tensor, _: each.broadcast_async(tensor, 0), lambda all_: [all_[0]] * 2),
    "reduce_scatter": (
        lambda each, tensor, out: each.reduce_scatter_async(tensor, out=out),
        lambda all_: list(sum(all_)),
    ),
    "reduce_scatter max": (
        lambda each, tensor, out: each.reduce_scatter_async(tensor, "max", out=out),
        lambda all_: list(np.maximum(*all_)),
    ),
    "all_gather": (lambda each, tensor, out: each.all_gather_async(tensor, out=out), lambda all_: [np.stack(all_)] * 2),
    "all_gather apart": (
        lambda each, tensor, out: each.start(None, all_gather_apart, tensor, list(out)),
        lambda all_: [np.stack(all_)] * 2,
    ),
}


@pytest.fixture
def cuda() -> Iterator[Cuda]:
    with fake_cuda() as cuda:
        yield cuda


def pending(cuda: Cuda) -> Any:
    """Return a tensor that its device has yet to compute. The device does not run until the test lets it."""
    tensor = cuda.tensor(torch.ones(70))
    tensor.add_(1)
    cuda.running.clear()
    return tensor


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_streams_read_and_write_in_the_order_of_the_program(
    name: str, dtype: str, cuda: Cuda, pair: list[Communicator]
) -> None:
    """Work that a stream was given before a collective sees the tensors as they were; later work sees the results."""
    start, results = COLLECTIVES[name]
    arrays = [np.random.default_rng(rank).integers(-8, 8, (2, 70)).astype(np.float32) for rank in range(2)]
    expected = results(arrays)
    kind = getattr(torch, dtype)

    def work(each: Communicator) -> list[Any]:
        with cuda.on(Stream(cuda, f"of rank {each.rank}")):
            tensor = cuda.tensor(torch.zeros(2, 70, dtype=kind))
            in_place = expected[0].shape == tensor.shape
            out = tensor if in_place else cuda.tensor(torch.full(expected[0].shape, OLD, dtype=kind))
            tensor.copy_(torch.from_numpy(arrays[each.rank]), non_blocking=True)
            before = out.clone()
            start(each, tensor, out).wait(20)
            after = out.clone()
            cuda.hurry()
            result = after.cpu().float().numpy()
        return [before, result, arrays[each.rank] if in_place else OLD]

    for rank, (before, after, then) in enumerate(together(pair, work)):
        np.testing.assert_array_equal(after, expected[rank])
        np.testing.assert_array_equal(before.cpu().float().numpy() - then, np.zeros_like(expected[rank]))
    assert cuda.freed_too_early == []


@pytest.mark.parametrize("name", COLLECTIVES)
def test_who_starts_a_collective_does_not_wait_for_the_device(name: str, cuda: Cuda, pair: list[Communicator]) -> None:
    """Collectives of host tensors that start after it wait for their turn."""
    start, results = COLLECTIVES[name]
    arrays = [np.full((2, 70), rank + 1.0, np.float32) for rank in range(2)]
    shape = results(arrays)[0].shape
    cuda.running.clear()

    def begin(each: Communicator) -> list[Any]:
        tensor, out = cuda.tensor(arrays[each.rank]), cuda.tensor(np.zeros(shape, np.float32))
        tensor.add_(0)
        handles = [start(each, tensor, out), each.allreduce_async(np.ones(3, np.float32))]
        assert threading.current_thread() not in cuda.hosts
        return handles

    begun = together(pair, begin)
    assert not any(handle.done() for handles in begun for handle in handles)
    cuda.running.set()
    for handles in begun:
        for handle in handles:
            handle.wait(20)
        assert handles[1].result().tolist() == [2, 2, 2]


def test_a_tensor_that_nobody_keeps_stays_until_its_result_is_written(cuda: Cuda, pair: list[Communicator]) -> None:
    def begin(each: Communicator) -> None:
        done = threading.Event()
        handle = each.allreduce_async(cuda.tensor(torch.ones(70)))
        handle.add_done_callback(lambda _: done.set())
        assert done.wait(20)

    together(pair, begin)
    together(pair, lambda each: each.allreduce(np.ones(3, np.float32)))  # threads keep what they did last
    wait_until(lambda: cuda.freed == 2, "the tensors' memory is free")
    assert cuda.freed_too_early == []


def test_a_collective_within_a_graph_is_refused(cuda: Cuda, pair: list[Communicator]) -> None:
    cuda.capturing = True
    for each in pair:
        with pytest.raises(P4ReduceError, match="cannot be captured into a CUDA graph"):
            each.allreduce(cuda.tensor(torch.ones(70)))
    cuda.capturing = False
    assert [float(each[0]) for each in together(pair, lambda each: each.allreduce(cuda.tensor(torch.ones(70))))] == [
        2
    ] * 2


def test_a_device_that_does_not_come_to_it_is_a_timeout(cuda: Cuda, pair: list[Communicator]) -> None:
    tensor = pending(cuda)
    handle = pair[0].allreduce_async(tensor, timeout=0.2)
    behind = error_of(lambda: pair[0].allreduce_async(np.ones(3, np.float32)).wait(20))  # or it is too late to start
    for error in (handle.exception(20), behind):
        assert isinstance(error, CollectiveTimeout)
        assert str(error) == (
            "allreduce (sum) of 70 float32 did not begin within 0.2 s: this rank's device has yet to compute its tensor"
        )
    assert isinstance(error_of(lambda: pair[0].barrier()), CollectiveTimeout), "ranks no longer agree on what is next"


def test_a_failed_communicator_keeps_no_tensor(cuda: Cuda, each_pair: list[Communicator]) -> None:
    cuda.current().give(lambda: None)
    cuda.running.clear()
    handle = each_pair[0].allreduce_async(cuda.tensor(torch.ones(70)), timeout=0.1)
    assert isinstance(handle.exception(20), CollectiveTimeout)
    del handle
    wait_until(lambda: cuda.freed == 1, "the tensor's memory is free")


def test_a_device_may_be_late_while_an_earlier_collective_is_under_way(
    cuda: Cuda, each_pair: list[Communicator]
) -> None:
    one, other = each_pair
    tensors = [cuda.tensor(torch.ones(70)) for _ in each_pair]
    cuda.running.clear()
    earlier = one.allreduce_async(np.ones(3, np.float32))
    tensors[0].add_(1)
    handle = one.allreduce_async(tensors[0], timeout=1.0)
    wait_until(lambda: "waiting for rank 1" in str(error_of(lambda: handle.wait(1.2))), "the earlier one to be awaited")
    cuda.running.set()
    device = cuda.current()
    wait_until(lambda: device.done == len(device.given), "the device, which has 1 s once the earlier one has ended")
    for theirs in [other.allreduce_async(tensor) for tensor in (np.ones(3, np.float32), tensors[1])]:
        theirs.wait(20)
    earlier.wait(20)
    handle.wait(20)
    assert tensors[0].tolist() == [3.0] * 70


def test_who_waits_for_a_device_is_told_so(cuda: Cuda, each_pair: list[Communicator]) -> None:
    tensor = pending(cuda)
    handles = [each_pair[0].allreduce_async(each) for each in (tensor, np.ones(3, np.float32))]
    wait_until(lambda: bool(cuda.hosts), "the line's first look at the device")
    for handle, size in zip(handles, (70, 3), strict=True):
        with pytest.raises(TimeoutError) as raised:
            handle.wait(0.1)
        assert str(raised.value) == (
            f"allreduce (sum) of {size} float32 has not ended after waiting 0.1 s: "
            "this rank's device has yet to compute the tensor of allreduce (sum) of 70 float32"
        )
    cuda.running.set()


def test_a_tensor_that_cannot_be_copied_ends_the_communicator(cuda: Cuda, pair: list[Communicator]) -> None:
    def break_down() -> None:
        raise RuntimeError("the device is broken")

    tensor = cuda.tensor(torch.ones(70))
    cuda.running.clear()  # until both are started: then neither finds an ended communicator
    cuda.current().give(break_down)
    handles = [pair[0].allreduce_async(each) for each in (tensor, np.ones(3, np.float32))]
    cuda.running.set()
    for handle in handles:
        error = handle.exception(20)
        assert str(error) == "allreduce (sum) of 70 float32 cannot begin: RuntimeError: the device is broken"
    assert isinstance(error_of(lambda: pair[0].barrier()), P4ReduceError)


def test_closing_a_communicator_ends_what_waits_for_a_device(cuda: Cuda, pair: list[Communicator]) -> None:
    tensor = pending(cuda)
    handle = pair[0].allreduce_async(tensor)
    pair[0].close()
    with pytest.raises(P4ReduceError, match="the communicator is closed"):
        handle.wait(20)


def test_a_ddp_hook_returns_while_gradients_are_still_computed(cuda: Cuda, pair: list[Communicator]) -> None:
    from p4reduce.ddp import AllreduceState, allreduce_hook

    cuda.running.clear()

    def begin(each: Communicator) -> tuple[Any, Any]:
        gradients = cuda.tensor(torch.zeros(70))
        gradients.add_(each.rank + 1)
        bucket: Any = SimpleNamespace(buffer=lambda: gradients, parameters=list)
        future = allreduce_hook(AllreduceState(each), bucket)
        assert threading.current_thread() not in cuda.hosts
        return future, gradients

    begun = together(pair, begin)
    assert not any(future.done() for future, _ in begun)
    cuda.running.set()
    for future, gradients in begun:
        assert future.wait() is gradients
        assert gradients.tolist() == [1.5] * 70
    assert cuda.devices_of_futures == [[torch.device("cuda", 0)]] * 2


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_floats_of_every_size_come_by_their_blocks(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = pytest.importorskip("p4reduce.tensors.device_blocks", reason="needs triton", exc_type=ImportError)
    from p4reduce.tensors import cuda

    packed = []
    pack = kernels.pack
    monkeypatch.setattr(kernels, "pack", lambda *args: packed.append(pack(*args)) or packed[-1])
    monkeypatch.setattr(cuda, "_triton_works", lambda _: True)
    tensor = torch.zeros(1000, dtype=getattr(torch, dtype), device="cuda" if torch.cuda.is_available() else "cpu")
    tensor[70], tensor[-1] = 1.5, -(2.0**-24)
    host = torch.zeros(1000)
    cuda._to_host(tensor, host, bits=False)
    assert torch.equal(host, tensor.cpu().float())
    assert [tuple(each.shape) for each in packed] == [(2, 64)]
