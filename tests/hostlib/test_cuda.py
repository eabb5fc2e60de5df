# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors, over a model of the switch."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from p4reduce import Communicator
from p4reduce.protocol.numbers import reference_allreduce
from tests.support.hostlib.in_process import together

torch = pytest.importorskip("torch", reason="needs torch")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def tensors(*shape: int) -> list[Any]:
    made = [np.random.default_rng(rank).standard_normal(shape).astype(np.float32) for rank in range(2)]
    for array in made:
        array.reshape(-1)[100:400] = 0
    return made


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "whole"])
def test_every_collective(pair: list[Communicator], packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if packed:
        pytest.importorskip("triton", reason="needs triton")
    else:
        monkeypatch.setattr("p4reduce.tensors.cuda._triton_works", lambda _: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # kernels that do not work
        arrays = tensors(2, 3001)
        expected = torch.from_numpy(reference_allreduce(arrays))
        on_device = [torch.from_numpy(array).cuda() for array in arrays]
        for result in together(pair, lambda each: each.allreduce(on_device[each.rank].clone())):
            assert result.is_cuda
            assert torch.equal(result.cpu(), expected)
        for rank, part in enumerate(together(pair, lambda each: each.reduce_scatter(on_device[each.rank]))):
            assert torch.equal(part.cpu(), expected[rank])
        for result in together(pair, lambda each: each.all_gather(on_device[each.rank].t())):
            assert torch.equal(result.cpu(), torch.stack([torch.from_numpy(array.T) for array in arrays]))
        for result in together(pair, lambda each: each.allreduce(on_device[each.rank].clone(), "max")):
            assert torch.equal(result.cpu(), torch.from_numpy(np.maximum(*arrays)))
        zeros = [torch.full((130,), -0.0 if rank else 3.0, device="cuda") for rank in range(2)]
        for result in together(pair, lambda each: each.broadcast(zeros[each.rank], 1)):
            assert result.view(torch.int32).tolist() == [-(2**31)] * 130
        torch.sparse.check_sparse_tensor_invariants.disable()  # some releases warn where nobody has chosen
        sparse = [torch.eye(3).to_sparse().cuda() for _ in pair]
        for result in together(pair, lambda each: each.allreduce(sparse[each.rank])):
            assert torch.equal(result.to_dense().cpu(), torch.eye(3) * 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_floats_of_16_bits(pair: list[Communicator], dtype: Any) -> None:
    tensors_ = [torch.from_numpy(array).to(dtype) for array in tensors(3001)]
    expected = together(pair, lambda each: each.allreduce(tensors_[each.rank].clone()))
    for result in together(pair, lambda each: each.allreduce(tensors_[each.rank].cuda())):
        assert torch.equal(result.cpu(), expected[0])


def test_streams_are_waited_for(pair: list[Communicator]) -> None:
    """A call reduces values that a stream is still computing, keeps those that it still reads, and does not wait."""
    streams = [torch.cuda.Stream() for _ in pair]

    def work(each: Communicator) -> Any:
        with torch.cuda.stream(streams[each.rank]):
            tensor = torch.ones(1_000_000, device="cuda")
            tensor -= 1  # CUDA loads a kernel when it is first used, and waits for the device then
            each.broadcast(tensor.clone().mul_(3), 0)
            torch.cuda._sleep(1_000_000_000)
            tensor += 1
            before = tensor.clone()
            handle = each.broadcast_async(tensor, 0) if each.rank else each.broadcast_async(tensor.mul_(3), 0)
            computing = not streams[each.rank].query()
            handle.wait()
            return computing, float(before.sum()), float(tensor.sum())

    assert together(pair, work) == [(True, 1_000_000.0, 3_000_000.0)] * 2


def test_ddp_and_the_backend_hand_on_the_order_of_streams(pair: list[Communicator]) -> None:
    from p4reduce.ddp import AllreduceState, allreduce_hook
    from p4reduce.distributed.work import SwitchWork

    def work(each: Communicator) -> list[float]:
        with torch.cuda.stream(torch.cuda.Stream()):
            gradients = torch.zeros(1_000_000, device="cuda")
            torch.cuda._sleep(100_000_000)
            gradients += each.rank + 1
            bucket: Any = SimpleNamespace(buffer=lambda: gradients, parameters=list)
            averages = [float(allreduce_hook(AllreduceState(each), bucket).wait().sum())]
            future = SwitchWork(each.allreduce_async(gradients), [gradients]).get_future()
            doubled = future.then(lambda ended: ended.value()[0] * 2)
            return [*averages, float(doubled.wait().sum())]

    assert together(pair, work) == [[1_500_000.0, 6_000_000.0]] * 2
