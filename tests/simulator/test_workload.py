# SPDX-License-Identifier: Apache-2.0
"""Drawn tensors: their zeros are as the workload says, and formulas agree with what is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4reduce_simulator import Workload
from p4reduce_simulator.peers.support import Support
from p4reduce_simulator.plan.models import MODELS
from p4reduce_simulator.workload import OVERLAPS, PATTERNS

RANKS = 6


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("overlap", [*OVERLAPS, 0.0, 0.4, 1.0])
def test_shares_of_ranks_and_of_sums_are_as_expected(pattern: str, overlap: str | float) -> None:
    workload = Workload(1 << 20, 0.1, pattern, overlap, run=4, block=16, dense=0.02)
    support = Support(workload, RANKS)
    assert support.nonzero / support.numel == pytest.approx(0.02 + 0.98 * 0.1, rel=0.05)
    for ranks in (1, 2, RANKS):
        assert workload.union(ranks) == pytest.approx(support.union(ranks) / support.numel, rel=0.05)


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.workload.density < 1])
def test_shares_of_models_are_as_expected(name: str) -> None:
    workload = MODELS[name].workload.first(1 << 24)
    support = Support(Workload(**{**vars(workload), "numel": 1 << 24}), 8)
    for ranks in (1, 8):
        assert workload.union(ranks) == pytest.approx(support.union(ranks) / support.numel, rel=0.1)


def test_a_share_of_overlap_is_common_to_all_ranks() -> None:
    masks = list(Workload(1 << 20, 0.01, "elements", 0.4).masks(RANKS, 0))
    common = np.logical_and.reduce(masks).sum()
    assert common == pytest.approx(0.4 * masks[0].sum(), rel=0.05)


def test_runs_are_as_long_as_asked_for() -> None:
    mask = next(Workload(1 << 20, 0.05, "runs", run=8).masks(1, 0))
    ends = np.count_nonzero(np.diff(mask.astype(np.int8)) == -1)
    assert mask.sum() / ends == pytest.approx(8 / 0.95, rel=0.05)  # one run of twenty is followed by another


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5000),
    st.sampled_from([0.0, 0.003, 0.2, 1.0]),
    st.sampled_from(PATTERNS),
    st.sampled_from([*OVERLAPS, 0.5]),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.1]),
    st.integers(1, 300),
)
def test_blocks_are_those_of_the_tensors(
    numel: int, density: float, pattern: str, overlap: str | float, run: int, block: int, dense: float, size: int
) -> None:
    """Tensors are not zero where masks say so, and `Support` finds the elements and blocks that are not zero.

    The last row or block may have fewer elements than the others.
    """
    workload = Workload(numel, density, pattern, overlap, dense, run, block)
    support = Support(workload, 3, 5)
    there = np.stack(list(workload.tensors(3, 5))) != 0
    assert support.nonzero == pytest.approx(there.sum() / 3)
    assert support.union(3) == there.any(0).sum()
    found = support.blocks(size)
    for values, mask, blocks in zip(workload.tensors(3, 5), workload.masks(3, 5), found, strict=True):
        assert values.shape == (numel,)
        assert np.array_equal(values != 0, np.repeat(mask, workload.unit)[:numel])
        padded = np.zeros(-(-numel // size) * size, bool)
        padded[:numel] = values != 0
        assert np.array_equal(blocks, padded.reshape(-1, size).any(1))


def test_the_first_elements_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tensors.npy"
    stored = np.arange(30, dtype=np.float32).reshape(2, 15)
    np.save(file, stored)
    workload = Workload(15, file=str(file))
    assert np.array_equal(np.stack(list(workload.first(4).tensors(2, 0))), stored[:, :4])
    assert [mask.tolist() for mask in workload.first(2).masks(2, 0)] == [[False, True], [True, True]]
    with pytest.raises(ValueError, match=r"has shape \(2, 15\): accepted is \(2 ranks or more, 16 elements or more\)"):
        list(Workload(16, file=str(file)).tensors(2, 0))


@pytest.mark.parametrize(
    ("dtype", "value", "accepted"),
    [
        ("float32", 1e39, False),
        ("float32", 0.1, True),
        ("float32", 1e-60, True),
        ("float32", -np.inf, True),
        ("float32", np.nan, True),
        ("int32", 2.0**31, False),
        ("int32", 2**32 + 1, False),
        ("int32", 0.5, False),
        ("int32", np.nan, False),
        ("int32", -(2**31), True),
    ],
)
def test_values_of_a_file_that_the_dtype_does_not_have(
    dtype: str, value: float, accepted: bool, tmp_path: Path
) -> None:
    file = tmp_path / "tensors.npy"
    np.save(file, np.array([[1, value]]))
    workload = Workload(2, dtype=dtype, file=str(file))
    if accepted:
        assert next(workload.tensors(1, 0))[0] == 1
        return
    with pytest.raises(ValueError, match=f"has the value .*, and {dtype} has none that is near"):
        list(workload.tensors(1, 0))
