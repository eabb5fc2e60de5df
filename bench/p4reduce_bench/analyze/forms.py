# SPDX-License-Identifier: Apache-2.0
"""The layouts of `Communicator.allreduce`: by blocks or by elements, for each number format of the words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from p4reduce.collectives.choice import LEAST, Costs, elements_may_save
from p4reduce.collectives.sparse import fits_header
from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE
from p4reduce.protocol.numbers import Wire, values_per_word
from p4reduce.tensors.indices import Code
from p4reduce_bench.analyze.measures import block_mask
from p4reduce_bench.recordings import Mask

WIRES: tuple[Wire, ...] = ("int32", "int16")
"""The defaults of float32, and of float16 and bfloat16."""


@dataclass(frozen=True)
class Form:
    """The cost of a tensor in words of one format, by the estimates with which ranks choose a layout.

    The estimates use counts alone and take the indices to be random. If workers share indices, there are fewer bytes.
    """

    blocks_bytes: float
    """The bytes that each worker receives by blocks."""
    elements_bytes: float
    """The bytes that each worker receives by elements."""
    blocks_s: float
    elements_s: float
    by_elements: float
    """1 if `layout="auto"` takes elements once it knows the sum of such a tensor, 0 if it takes blocks; the mean of
    several iterations."""


Forms: TypeAlias = Mapping[Wire, Form]


def forms(mask: Mask, bits_per_second: float) -> Forms:
    """Return the cost of a tensor for each of `WIRES`. mask: its non-zero elements, shape (workers, numel)."""
    return {wire: _form(mask, wire, round(bits_per_second)) for wire in WIRES}


def _form(mask: Mask, wire: Wire, bits_per_second: int) -> Form:
    estimate = _costs(mask, wire).estimate([bits_per_second] * len(mask))
    return Form(
        blocks_bytes=estimate.blocks.bytes,
        elements_bytes=estimate.elements.bytes,
        blocks_s=estimate.blocks.seconds,
        elements_s=estimate.elements.seconds,
        by_elements=float(_asks(mask, wire) and (_fit_header(mask) or estimate.layout == "elements")),
    )


def _asks(mask: Mask, wire: Wire) -> bool:
    """Return whether ranks that know the sum of such a tensor exchange counts of the next one."""
    union: Mask = np.any(mask, axis=0, keepdims=True)
    size, per_word = mask.shape[1], values_per_word(wire)
    block = DEFAULT_BLOCK_SIZE * per_word
    [elements], [blocks] = _counts(union), _counts(block_mask(union, block))
    return size >= LEAST and elements_may_save(size, block, per_word, elements, blocks)


def _fit_header(mask: Mask) -> bool:
    return all(fits_header(Code(count, mask.shape[1])) for count in _counts(mask))


def _costs(mask: Mask, wire: Wire) -> Costs:
    per_word = values_per_word(wire)
    block = DEFAULT_BLOCK_SIZE * per_word
    return Costs.of_counts(mask.shape[1], block, per_word, _counts(mask), _counts(block_mask(mask, block)))


def _counts(mask: Mask) -> list[int]:
    counts: list[int] = np.count_nonzero(mask, axis=1).tolist()
    return counts
