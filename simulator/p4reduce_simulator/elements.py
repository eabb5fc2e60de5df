# SPDX-License-Identifier: Apache-2.0
"""An allreduce of dense tensors by elements, as `p4reduce.collectives.sparse` makes it: three operations of words.

The simulated workers and switches reduce the real words. What hosts compute between operations takes the time of
`Host.element` and `Host.index`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from p4reduce.collectives.sparse import INLINE, fits_header
from p4reduce.protocol.numbers import reference_allreduce
from p4reduce.tensors.indices import Code, find, locate, union
from p4reduce_simulator.simulation import Simulation

Times: TypeAlias = npt.NDArray[np.float64]
Words: TypeAlias = npt.NDArray[np.int32]

_NUMBERS = 5  # of a header


def allreduce(
    simulation: Simulation, tensors: Sequence[npt.NDArray[Any]], starts: Times, run: Callable[[], object]
) -> tuple[list[tuple[float, float]], npt.NDArray[np.int64], list[npt.NDArray[Any]]]:
    """Reduce the ranks' tensors. `run` simulates until all operations have ended.

    Return each rank's start and end, the elements of the sum that are not zero at all ranks, and these at each rank.
    """
    host, size, numbers = simulation.network.host, tensors[0].size, [find(values) for values in tensors]
    computing = host.index * sum(map(len, numbers))
    codes = [Code(len(some), size) for some in numbers]
    all_ = union(numbers, size)
    begun = starts + host.element * size
    if all(fits_header(code) for code in codes):
        inline = [
            np.concatenate([code.encode(some), values[some].view(np.int32)])
            for code, some, values in zip(codes, numbers, tensors, strict=True)
        ]
        ends = _gather(simulation, [_header(words) for words in inline], begun, run) + computing
        sums = reference_allreduce([values[all_] for values in tensors], block_size=simulation.block_size)
        return _spans(starts, ends), all_, [sums] * len(tensors)
    ends = _gather(simulation, [_header(np.zeros(0, np.int32))] * len(tensors), begun, run)
    encoded = [code.encode(some) for code, some in zip(codes, numbers, strict=True)]
    ends = _gather(simulation, encoded, ends, run)
    scattered = [np.zeros(all_.size, values.dtype) for values in tensors]
    for row, some, values in zip(scattered, numbers, tensors, strict=True):
        row[locate(all_, some)] = values[some]
    ends = _operation(simulation, scattered, ends + computing, run)
    return _spans(starts, ends), all_, scattered


def _spans(starts: Times, ends: Times) -> list[tuple[float, float]]:
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def _header(words: Words) -> Words:
    """Return a header with words of indices and values. Its numbers are not zero, as those of a dense tensor."""
    return np.concatenate([np.ones(2 * _NUMBERS, np.int32), words, np.zeros(INLINE - words.size, np.int32)])


def _gather(simulation: Simulation, parts: Sequence[Words], starts: Times, run: Callable[[], object]) -> Times:
    """Let all ranks have all parts. Return when each has them."""
    ends = np.cumsum([part.size for part in parts])
    arrays = [np.zeros(int(ends[-1]), np.int32) for _ in parts]
    for array, part, end in zip(arrays, parts, ends, strict=True):
        array[end - part.size : end] = part
    ended, all_ = _operation(simulation, arrays, starts, run), np.concatenate(parts)
    if not all(np.array_equal(array, all_) for array in arrays):
        raise ValueError("p4reduce by elements: a rank's words are wrong")
    return ended


def _operation(
    simulation: Simulation, arrays: Sequence[npt.NDArray[Any]], starts: Times, run: Callable[[], object]
) -> Times:
    """Run one operation, in place. Return when each rank's ended."""
    starts = np.maximum(starts, simulation.now)
    submitted = [simulation.submit(rank, array, starts[rank]) for rank, array in enumerate(arrays)]
    run()
    ends = np.array([simulation.operation(number)[1] for number in submitted])
    simulation.forget_arrays()
    return ends
