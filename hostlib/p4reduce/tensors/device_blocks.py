# SPDX-License-Identifier: Apache-2.0
"""Triton kernels that find a tensor's non-zero blocks on the device, and pack them.

So only a byte for each block and the values of the non-zero ones cross the bus to the host.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from p4reduce.protocol.blocks import ZERO

_ROWS = 16  # blocks of each program


@triton.jit
def _words(values):
    """Return elements as the protocol carries them: the bits of float32, or int32. bfloat16 is passed as its bits."""
    if values.dtype == tl.int16:
        values = values.to(tl.int32) << 16
    if values.dtype == tl.float16:
        values = values.to(tl.float32)  # exact
    return values.to(tl.int32, bitcast=True)


@triton.jit
def _scan(
    elements,
    exponents,
    size,
    blocks,
    IS_FLOAT: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    offsets = rows[:, None] * BLOCK + columns[None, :]
    values = _words(tl.load(elements + offsets, (columns[None, :] < BLOCK) & (offsets < size), other=0))
    if IS_FLOAT:
        # The magnitudes of IEEE numbers, read as integers, are in the order of their values.
        largest = tl.max(values & 0x7FFFFFFF, axis=1)
        found = tl.where(largest == 0, 0, tl.maximum(largest >> 23, 1))
    else:
        found = tl.max((values != 0).to(tl.int32), axis=1) * 255
    tl.store(exponents + rows, found.to(tl.uint8), rows < blocks)


@triton.jit
def _pack(elements, chosen, packed, size, count, BLOCK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    within = (rows[:, None] < count) & (columns[None, :] < BLOCK)
    blocks = tl.load(chosen + rows, rows < count, other=0)
    offsets = blocks[:, None] * BLOCK + columns[None, :]
    values = _words(tl.load(elements + offsets, within & (offsets < size), other=0))
    tl.store(packed + rows[:, None] * BLOCK + columns[None, :], values, within)


def _shape(block_size: int) -> dict[str, int]:
    """Return the sizes for which kernels are compiled. Triton needs arrays whose widths are powers of two."""
    return {"BLOCK": block_size, "WIDTH": triton.next_power_of_2(block_size), "ROWS": _ROWS}


def _elements(flat: torch.Tensor) -> torch.Tensor:
    """Return the elements in the dtype that the kernels read."""
    kinds = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
    return flat.view(kinds.get(flat.dtype, flat.dtype))


def scan(flat: torch.Tensor, block_size: int) -> torch.Tensor:
    """Return the largest biased exponent in each block, as `protocol.blocks.Blocks.scan` does: uint8, on the device.

    flat: float32, float16, bfloat16 or int32, of one dimension, contiguous. float16 and bfloat16 count as float32, as
        which the protocol carries them.
    """
    blocks = -(-flat.numel() // block_size)
    exponents = torch.empty(blocks, dtype=torch.uint8, device=flat.device)
    if blocks:
        _scan[(triton.cdiv(blocks, _ROWS),)](
            _elements(flat), exponents, flat.numel(), blocks,
            IS_FLOAT=flat.dtype.is_floating_point, **_shape(block_size),
        )  # fmt: skip
    return exponents


def pack(flat: torch.Tensor, chosen: torch.Tensor, block_size: int) -> torch.Tensor:
    """Return the chosen blocks, padded with zeros: shape (blocks, block_size), float32 or int32, in the host's memory.

    flat: as for `scan`. chosen: numbers of blocks, int64, on its device. The copy has completed on return.
    """
    dtype = torch.float32 if flat.dtype.is_floating_point else torch.int32
    packed = torch.empty((chosen.numel(), block_size), dtype=dtype, device="cpu", pin_memory=flat.is_cuda)
    if chosen.numel():
        # The kernel writes into the pinned memory itself.
        _pack[(triton.cdiv(chosen.numel(), _ROWS),)](
            _elements(flat), chosen, packed.view(torch.int32), flat.numel(), chosen.numel(),
            **_shape(block_size),
        )  # fmt: skip
    if flat.is_cuda:
        torch.cuda.current_stream(flat.device).synchronize()
    return packed


def copy_nonzero(flat: torch.Tensor, host: torch.Tensor, block_size: int) -> None:
    """Copy `flat`, as for `scan`, into `host`, of the same size and full of zeros, by non-zero blocks.

    host: float32, or int32 for int32. Of floats, blocks that hold only -0 count as zero.
    """
    exponents = scan(flat, block_size)
    chosen = (exponents != ZERO).nonzero().view(-1)
    packed = pack(flat, chosen, block_size)
    numbers = chosen.cpu()
    whole = flat.numel() // block_size
    ragged = bool(numbers.numel()) and int(numbers[-1]) == whole  # the last block, of fewer values
    last = numbers.numel() - ragged
    host[: whole * block_size].view(-1, block_size)[numbers[:last]] = packed[:last]
    if ragged:
        host[whole * block_size :] = packed[last, : flat.numel() - whole * block_size]
