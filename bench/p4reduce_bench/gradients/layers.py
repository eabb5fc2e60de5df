# SPDX-License-Identifier: Apache-2.0
"""The sparsity of recorded gradients by kinds of layers or by parameter."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from p4reduce_bench.analyze.analysis import average, together
from p4reduce_bench.analyze.measures import Measures, block_mask, measure
from p4reduce_bench.recordings import Mask, Recording

ALL = "all"
OTHER = "other"
BLOCK_SIZES = (64, 128, 256)

_KINDS = {
    "normalisation": r"norm|\bbn\d|\bln_|downsample\.1",
    "embedding": r"embed|\bw[tp]e\b|users|items|words|positions|table",
    "attention": r"attention|attn",
    "feed-forward": r"mlp|intermediate|output\.dense|\bdeep\b",
    "convolution": r"conv|features|downsample",
    "head": r"classifier|\bfc\b|\bcls\b|pooler|head|\boutput\b",
}
"""The kind of a parameter's layer is the first whose pattern is in the parameter's name."""


@dataclass(frozen=True)
class Group:
    """Some parameters together. Densification, overlap and skew are those of `by_size[1]`, by element."""

    name: str
    numel: int
    by_size: dict[int, Measures]
    """The measures by block size; 1: by element."""


def kind(parameter: str) -> str:
    """Return the kind of a parameter's layer, as far as the parameter's name shows it."""
    return next((name for name, pattern in _KINDS.items() if re.search(pattern, parameter, re.IGNORECASE)), OTHER)


def groups(found: Mapping[int, Sequence[Recording]], *, single: bool, step: Callable[[], object]) -> list[Group]:
    """Return ALL and each kind of layer, or with `single` each parameter, with means over the iterations.

    found: complete iterations. Blocks of ALL are those of the buckets; others begin with the parameter's first element.
    step: called after each iteration.
    """
    measured: dict[str, list[dict[int, Measures]]] = {}
    for recordings in found.values():
        masks = together(recordings)
        buckets = [np.concatenate([masks[name] for name in bucket], axis=1) for bucket in recordings[0].facts.buckets]
        measured.setdefault(ALL, []).append(_by_size(buckets))
        members: dict[str, list[Mask]] = {}
        for name, mask in masks.items():
            members.setdefault(name if single else kind(name), []).append(mask)
        for name, some in members.items():
            measured.setdefault(name, []).append(_by_size(some))
        step()
    return [
        Group(name, each[0][1].units, {size: average([one[size] for one in each]) for size in (1, *BLOCK_SIZES)})
        for name, each in measured.items()
    ]


def _by_size(parts: Sequence[Mask]) -> dict[int, Measures]:
    return {
        size: measure(np.concatenate([block_mask(part, size) for part in parts], axis=1)) for size in (1, *BLOCK_SIZES)
    }
