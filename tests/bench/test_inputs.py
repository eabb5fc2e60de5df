# SPDX-License-Identifier: Apache-2.0
"""The inputs are as sparse as they say, and their sum is exact."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from p4reduce.protocol.numbers import Wire, reference_allreduce, values_per_word
from p4reduce_bench.allreduce.grid import OVERLAPS, SPARSITIES, Case
from p4reduce_bench.allreduce.inputs import BLOCK, block_masks, largest, tensors

CASE = Case(workers=4, numel=64 * 2000 + 5, dtype="float32", density=0.2, overlap="random", sparsity="block")


@pytest.mark.parametrize("sparsity", SPARSITIES)
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_the_sum_is_what_everyone_expects_and_the_switch_can_give(overlap: str, sparsity: str) -> None:
    case = replace(CASE, overlap=overlap, sparsity=sparsity)
    made = [tensors(case, rank) for rank in range(case.workers)]
    expected = made[0][1]
    assert all(np.array_equal(total, expected) for _, total in made)
    inputs = [own for own, _ in made]
    assert np.array_equal(np.sum(inputs, axis=0, dtype=np.float64), expected)
    assert np.array_equal(reference_allreduce(inputs, "sum", BLOCK), expected)


@pytest.mark.parametrize("sparsity", SPARSITIES)
@pytest.mark.parametrize("workers", [2, 8, 32])
@pytest.mark.parametrize("wire", ["int16", "int8"])
def test_narrow_words_give_the_exact_sum(wire: Wire, workers: int, sparsity: str) -> None:
    case = replace(CASE, wire=wire, workers=workers, numel=64 * 30 + 5, sparsity=sparsity)
    inputs = [tensors(case, rank)[0] for rank in range(workers)]
    assert np.array_equal(reference_allreduce(inputs, "sum", BLOCK, wire), tensors(case, 0)[1])
    per_block = BLOCK * values_per_word(wire)
    for own, mask in zip(inputs, block_masks(case), strict=True):
        padded = np.resize(np.append(own, np.zeros(per_block, np.float32)), mask.size * per_block)
        assert np.array_equal(padded.reshape(-1, per_block).any(axis=1), mask)


@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_values_and_sums_are_exact_in_the_dtype(dtype: str) -> None:
    case = replace(CASE, dtype=dtype, density=1.0, overlap="all", workers=32, numel=64 * 1100)
    own, total = tensors(case, 3)
    assert np.array_equal(own.astype(dtype).astype(np.float32), own)
    assert np.array_equal(total.astype(dtype).astype(np.float32), total)


def test_bfloat16_values_and_sums_are_exact() -> None:
    own, total = tensors(replace(CASE, dtype="bfloat16", density=1.0), 0)
    for values in (own, total):  # nothing in the half that bfloat16 does not have
        assert not np.any(values.view(np.uint32) & 0xFFFF)


@pytest.mark.parametrize("sparsity", SPARSITIES)
def test_block_masks_say_which_blocks_are_not_zero(sparsity: str) -> None:
    case = replace(CASE, sparsity=sparsity, density=0.01)
    for rank, mask in enumerate(block_masks(case)):
        own = np.zeros(mask.size * BLOCK, np.float32)
        own[: case.numel] = tensors(case, rank)[0]
        assert np.array_equal(own.reshape(-1, BLOCK).any(axis=1), mask)


def test_density_and_overlap_are_as_asked() -> None:
    masks = {overlap: block_masks(replace(CASE, overlap=overlap)) for overlap in OVERLAPS}
    for made in masks.values():
        assert made.mean() == pytest.approx(0.2, abs=0.02)
    assert masks["none"].sum(axis=0).max() == 1
    assert (masks["all"] == masks["all"][0]).all()
    assert masks["random"].any(axis=0).mean() == pytest.approx(1 - 0.8**4, abs=0.05)
    crowded = block_masks(replace(CASE, overlap="none", density=0.5))
    assert set(crowded.sum(axis=0)) == {2}, "no more in common than must be"


@pytest.mark.parametrize("density", [0.0, 1.0])
def test_all_and_nothing(density: float) -> None:
    assert (block_masks(replace(CASE, density=density)) == bool(density)).all()


def test_tensors_of_a_file_are_taken_as_they_are(tmp_path: Path) -> None:
    stored = np.zeros((4, CASE.numel), np.float32)
    stored[1, 70] = stored[3, 70] = 0.5
    stored[2, -1] = -3
    np.save(tmp_path / "stored.npy", stored)
    case = replace(CASE, file=str(tmp_path / "stored.npy"))
    for rank in range(4):
        own, total = tensors(case, rank)
        assert np.array_equal(own, stored[rank])
        assert np.array_equal(np.flatnonzero(total), [70, CASE.numel - 1])
        assert total[70] == 1
        own[:] = 0  # a copy
    assert [list(np.flatnonzero(mask)) for mask in block_masks(case)] == [[], [1], [2000], [1]]
    assert largest(case) == 3
    assert largest(CASE) >= np.abs(tensors(CASE, 0)[0]).max()
