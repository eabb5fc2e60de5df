# SPDX-License-Identifier: Apache-2.0
"""The measures of recordings, averaged over iterations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any, TypeVar

import numpy as np

from p4reduce.errors import P4ReduceError
from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE
from p4reduce_bench.analyze.forms import WIRES, Form, Forms, forms
from p4reduce_bench.analyze.measures import Expected, Measures, block_mask, expected, measure
from p4reduce_bench.recordings import Mask, Recording

Figures = TypeVar("Figures", Measures, Expected, Form)


@dataclass(frozen=True)
class Row:
    """The measures of all parameters together, by element or by block. Times are those of one iteration."""

    block_size: int
    """The elements in a block; 1: by element."""
    measures: Measures
    expected: Expected | None
    """None if no packets carry such blocks."""


@dataclass(frozen=True)
class ParameterRow:
    """The measures of one parameter's gradients."""

    name: str
    numel: int
    elements: Measures
    blocks: Measures
    """The measures by blocks of the shipped program's block size."""
    forms: Forms
    """The layouts of the parameter if it is reduced by itself."""


@dataclass(frozen=True)
class BucketRow:
    """The layouts of one DDP bucket: a tensor that hooks reduce."""

    parameters: list[str]
    numel: int
    iterations: int
    """The number of iterations that had this bucket: DDP forms others after the first."""
    forms: Forms


@dataclass(frozen=True)
class Analysis:
    """The measures of the iterations that all ranks recorded."""

    iterations: list[int]
    incomplete: list[int]
    """Iterations that were left out because a rank's file is missing."""
    ranks: int
    workers: int
    """The number of tensors that are measured together; beyond `ranks`, gradients of other iterations stand in."""
    rows: list[Row]
    buckets: list[BucketRow]
    parameters: list[ParameterRow]


def analyze(
    found: Mapping[int, Sequence[Recording]],
    *,
    workers: int | None,
    block_sizes: Sequence[int],
    bits_per_second: float,
    step: Callable[[], object],
) -> Analysis:
    """Measure every iteration that all ranks recorded, and average.

    workers: how many tensors to measure together; by default, as many as ranks were recorded. Fewer: the first ones.
        More: the same ranks' gradients of other iterations, which also come from other batches, stand in.
    block_sizes: 1 for elements, and block sizes that packets carry.
    step: called after each iteration.
    """
    ranks = max(recordings[0].facts.world_size for recordings in found.values())
    complete = {iteration: list(recordings) for iteration, recordings in found.items() if len(recordings) == ranks}
    if not complete:
        raise P4ReduceError(
            f"no iteration was recorded by all {ranks} ranks: gather the files of all ranks in one place"
        )
    iterations = list(complete)
    most = ranks * len(iterations)
    count = ranks if workers is None else workers
    if count > most:
        raise P4ReduceError(
            f"--workers {count}: {ranks} ranks and {len(iterations)} iterations were recorded, whose gradients make at "
            f"most {most}"
        )
    names = [name for bucket in complete[iterations[0]][0].facts.buckets for name in bucket]
    by_size: dict[int, list[tuple[Measures, Expected | None]]] = {size: [] for size in block_sizes}
    by_name: dict[str, list[tuple[Measures, Measures, Forms]]] = {name: [] for name in names}
    by_bucket: dict[tuple[str, ...], list[tuple[int, Forms]]] = {}
    for index, iteration in enumerate(iterations):
        following = iterations[index:] + iterations[:index]
        pool = [recording for each in following for recording in complete[each]][:count]
        masks = together(pool)
        buckets = [np.concatenate([masks[name] for name in bucket], axis=1)
                   for bucket in complete[iteration][0].facts.buckets]  # fmt: skip
        for bucket, parameters in zip(buckets, complete[iteration][0].facts.buckets, strict=True):
            by_bucket.setdefault(tuple(parameters), []).append((bucket.shape[1], forms(bucket, bits_per_second)))
        for size in block_sizes:
            by_block = np.concatenate([block_mask(bucket, size) for bucket in buckets], axis=1)
            by_size[size].append((measure(by_block), expected(buckets, size, bits_per_second) if size > 1 else None))
        for name in names:
            by_block = block_mask(masks[name], DEFAULT_BLOCK_SIZE)
            by_name[name].append((measure(masks[name]), measure(by_block), forms(masks[name], bits_per_second)))
        step()
    return Analysis(
        iterations=iterations,
        incomplete=[iteration for iteration in found if iteration not in complete],
        ranks=ranks,
        workers=count,
        rows=[
            Row(
                block_size=size,
                measures=average([measures for measures, _ in measured]),
                expected=average([times for _, times in measured if times is not None]) if size > 1 else None,
            )
            for size, measured in by_size.items()
        ],
        buckets=[
            BucketRow(
                parameters=list(parameters),
                numel=sent[0][0],
                iterations=len(sent),
                forms=_average_forms([one for _, one in sent]),
            )
            for parameters, sent in by_bucket.items()
        ],
        parameters=[
            ParameterRow(
                name=name,
                numel=measured[0][0].units,
                elements=average([elements for elements, _, _ in measured]),
                blocks=average([blocks for _, blocks, _ in measured]),
                forms=_average_forms([one for _, _, one in measured]),
            )
            for name, measured in by_name.items()
        ],
    )


def together(pool: Sequence[Recording]) -> dict[str, Mask]:
    """Return the masks of some recordings by parameter: shape (recordings, numel)."""
    first, *others = (recording.masks() for recording in pool)
    for recording, masks in zip(pool[1:], others, strict=True):
        if {name: mask.size for name, mask in masks.items()} != {name: mask.size for name, mask in first.items()}:
            raise P4ReduceError(
                f"{pool[0].path} and {recording.path} do not hold the same parameters: give recordings of one training"
            )
    return {name: np.stack([mask, *(other[name] for other in others)]) for name, mask in first.items()}


def _average_forms(made: Sequence[Forms]) -> Forms:
    return {wire: average([one[wire] for one in made]) for wire in WIRES}


def average(measured: Sequence[Figures]) -> Figures:
    """Return the mean of each field over the measures in which it is known; counts are the same in all."""
    values: dict[str, Any] = {}
    for field in fields(measured[0]):
        known = [value for one in measured if (value := getattr(one, field.name)) is not None]
        values[field.name] = (known[0] if isinstance(known[0], int) else fmean(known)) if known else None
    return type(measured[0])(**values)
