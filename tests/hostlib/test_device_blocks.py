# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels, in Triton's interpreter where there is no GPU: they find what the protocol's own scan finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from p4reduce.protocol.blocks import Blocks

torch = pytest.importorskip("torch", reason="needs torch")
kernels = pytest.importorskip("p4reduce.tensors.device_blocks", reason="needs triton", exc_type=ImportError)

BLOCK_SIZES = [1, 3, 64, 100]


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@st.composite
def tensors(draw: st.DrawFn) -> tuple[Any, int]:
    """Return a tensor of any bits, with some blocks of zeros and of -0, and a block size."""
    block_size = draw(st.sampled_from(BLOCK_SIZES))
    dtype = draw(st.sampled_from([torch.float32, torch.int32, torch.float16, torch.bfloat16]))
    size = 8 * dtype.itemsize
    infinity = {torch.float16: 0x7C00}.get(dtype, 0x7F80 << size - 16)
    odd = st.sampled_from([0, 1, 1 << size - 1, infinity, infinity + 1, (1 << size) - 1, infinity >> 1])
    elements = odd | st.integers(0, (1 << size) - 1)
    bits = draw(st_np.arrays(f"uint{size}", draw(st.integers(0, 700)), elements=elements))
    for block in draw(st.sets(st.integers(0, 700))):
        bits[block * block_size : (block + 1) * block_size] = draw(st.sampled_from([0, 1 << size - 1]))
    return torch.from_numpy(bits.view(f"int{size}")).view(dtype), block_size


def carried(tensor: Any) -> Any:
    """Return the values that the protocol carries for the tensor, on the host."""
    return (tensor.float() if tensor.is_floating_point() else tensor.clone()).numpy()


@settings(max_examples=20)
@given(tensors())
def test_the_scan_is_the_protocols(case: tuple[Any, int]) -> None:
    tensor, block_size = case
    expected = Blocks(carried(tensor), block_size).scan()
    np.testing.assert_array_equal(kernels.scan(tensor.to(DEVICE), block_size).cpu().numpy(), expected)


@settings(max_examples=20)
@given(tensors())
def test_what_is_not_zero_is_copied(case: tuple[Any, int]) -> None:
    tensor, block_size = case
    expected = carried(tensor)
    host = torch.from_numpy(np.zeros_like(expected))
    kernels.copy_nonzero(tensor.to(DEVICE), host, block_size)
    blocks = Blocks(expected, block_size)
    blocks.clear(np.flatnonzero(blocks.scan() == 0).tolist())
    if tensor.dtype == torch.float16:  # whose NaNs a processor may make quiet
        np.testing.assert_array_equal(np.isnan(host.numpy()), np.isnan(expected))
        host[host.isnan()], expected[np.isnan(expected)] = 0, 0
    np.testing.assert_array_equal(host.numpy().view(np.uint32), expected.view(np.uint32))


def test_only_what_is_not_zero_is_packed() -> None:
    tensor = torch.zeros(64 * 1000, device=DEVICE)
    tensor[64 * 7], tensor[-1] = 1.5, -2.5
    chosen = kernels.scan(tensor, 64).nonzero().view(-1)
    packed = kernels.pack(tensor, chosen, 64)
    assert chosen.tolist() == [7, 999]
    assert packed.shape == (2, 64)
    assert (packed[0, 0], packed[1, 63], packed.abs().sum()) == (1.5, -2.5, 4)
