# SPDX-License-Identifier: Apache-2.0
"""Tests of the parts of `p4reduce bench gradients`."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from p4reduce.errors import P4ReduceError
from p4reduce.protocol.numbers import reference_allreduce
from p4reduce.tensors.recordings import Facts, path_of, write
from p4reduce_bench.allreduce.inputs import BLOCK, block_masks, largest, tensors
from p4reduce_bench.gradients import models, replay
from p4reduce_bench.gradients.datasets import shard, text
from p4reduce_bench.gradients.layers import ALL, groups, kind
from p4reduce_bench.gradients.plan import MODELS, Plan
from p4reduce_bench.gradients.sparsify import Sparsifier
from p4reduce_bench.gradients.training import BUCKET, FIRST_BUCKET, buckets, train

WORKERS, NUMEL = 3, 64 * 50 + 7


def record(folder: Path, gradients: list[np.ndarray], iteration: int = 1) -> replay.Recorded:
    for rank, own in enumerate(gradients):
        parts = {"conv.weight": own[:1000].reshape(10, 100), "fc.bias": own[1000:]}
        facts = Facts(rank, len(gradients), iteration, [["fc.bias"], ["conv.weight"]])
        write(path_of(folder, iteration, rank), facts, parts)
    return replay.read(folder, "model", "none")


def drawn(seed: int) -> list[np.ndarray]:
    """Return an array for each worker, whose magnitudes differ as gradients' do, and of which a half is zero."""
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal(NUMEL) * 10.0 ** rng.uniform(-12, 0, NUMEL) * (rng.random(NUMEL) < 0.5)).astype(np.float32)
        for _ in range(WORKERS)
    ]


def test_replayed_gradients_have_exact_sums_and_the_zeros_that_were_recorded(tmp_path: Path) -> None:
    gradients = drawn(1)
    ((iteration, case),) = replay.cases(record(tmp_path / "recorded", gradients), tmp_path / "inputs")
    inputs = [tensors(case, rank)[0] for rank in range(WORKERS)]
    total = tensors(case, 0)[1]
    assert (iteration, case.workers, case.numel) == (1, WORKERS, NUMEL)
    as_reduced = [np.concatenate([own[1000:], own[:1000]]) for own in gradients]
    scale = np.abs(gradients).max() / np.abs(inputs).max()
    for own, recorded in zip(inputs, as_reduced, strict=True):
        assert np.array_equal(own != 0, recorded != 0)
        assert np.abs(own * scale - recorded).max() < 2.0**-18 * np.abs(recorded).max()
    assert np.array_equal(np.sum(inputs, axis=0, dtype=np.float64), total)
    assert np.array_equal(inputs[2] + inputs[0] + inputs[1], total)
    assert np.array_equal(reference_allreduce(inputs, "sum", BLOCK), total)
    # Blocks of another layout, in which elements of far-off blocks stand together.
    order = np.random.default_rng(2).permutation(NUMEL)
    assert np.array_equal(reference_allreduce([own[order] for own in inputs], "sum", BLOCK), total[order])
    assert largest(case) == max(np.abs(own).max() for own in inputs)
    assert case.density == pytest.approx(np.mean([own != 0 for own in inputs]))
    masks = block_masks(case)
    assert masks.shape == (WORKERS, -(-NUMEL // BLOCK))
    assert masks[1][3] == inputs[1][3 * BLOCK : 4 * BLOCK].any()


def test_gradients_without_any_value_stay_zero(tmp_path: Path) -> None:
    zeros = [np.zeros(NUMEL, np.float32)] * 2
    ((_, case),) = replay.cases(record(tmp_path / "recorded", zeros), tmp_path / "inputs")
    assert not tensors(case, 1)[1].any()


def test_what_is_not_finite_has_no_sum(tmp_path: Path) -> None:
    bad = drawn(1)
    bad[1][5] = np.nan
    with pytest.raises(P4ReduceError, match="not finite"):
        list(replay.cases(record(tmp_path / "recorded", bad), tmp_path / "inputs"))


def test_recordings_of_others_are_replayed_from_their_folder(tmp_path: Path) -> None:
    record(tmp_path / "mine", drawn(1))
    (found,) = replay.kept(tmp_path / "mine")
    assert (found.model, found.sparsifier, found.workers, list(found.found)) == ("mine", "as recorded", WORKERS, [1])


def test_an_iteration_that_a_rank_lacks_is_left_out(tmp_path: Path) -> None:
    record(tmp_path, drawn(1), iteration=1)
    record(tmp_path, drawn(2), iteration=2)
    path_of(tmp_path, 2, 1).unlink()
    assert list(replay.read(tmp_path, "model", "none").found) == [1]
    path_of(tmp_path, 1, 0).unlink()
    with pytest.raises(P4ReduceError, match="no iteration was recorded by all ranks"):
        replay.read(tmp_path, "model", "none")


def test_measures_by_kind_of_layer(tmp_path: Path) -> None:
    own = np.zeros(NUMEL, np.float32)
    own[:10] = 1
    other = np.zeros(NUMEL, np.float32)
    other[5:1000] = 1
    recorded = record(tmp_path, [own, other])
    found = {group.name: group for group in groups(recorded.found, single=False, step=lambda: None)}
    assert found.keys() == {ALL, "convolution", "head"}
    convolution = found["convolution"].by_size[1]
    assert (found["convolution"].numel, convolution.density) == (1000, (0.01 + 0.995) / 2)
    assert (convolution.overlap, convolution.union) == (0.5, 1.0)
    assert found["convolution"].by_size[256].density == (1 / 4 + 1) / 2
    assert found["head"].by_size[1].density == 0
    assert found[ALL].numel == NUMEL


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("layer1.0.bn1.weight", "normalisation"),
        ("layer2.0.downsample.0.weight", "convolution"),
        ("layer2.0.downsample.1.weight", "normalisation"),
        ("features.0.weight", "convolution"),
        ("classifier.3.weight", "head"),
        ("bert.embeddings.LayerNorm.weight", "normalisation"),
        ("bert.encoder.layer.0.attention.output.dense.weight", "attention"),
        ("bert.encoder.layer.0.output.dense.weight", "feed-forward"),
        ("transformer.wte.weight", "embedding"),
        ("transformer.h.0.mlp.c_proj.weight", "feed-forward"),
        ("thing", "other"),
    ],
)
def test_kinds_of_layers(name: str, expected: str) -> None:
    assert kind(name) == expected


def test_every_model_can_be_made_and_its_name_needs_no_torch() -> None:
    assert models.MAKERS.keys() == MODELS.keys()
    program = "import sys; import p4reduce_bench.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_buckets_are_those_of_ddp() -> None:
    module = nn.Sequential(*[nn.Linear(width, width) for width in (700, 3000, 100, 600, 1200, 300, 200, 500)])
    tensors_ = list(reversed(list(module.parameters())))
    assigned, _ = dist._compute_bucket_assignment_by_size(tensors_, [FIRST_BUCKET, BUCKET])
    ours = [[parameter for _, parameter in bucket] for bucket in buckets(module)]
    assert [[id(one) for one in bucket] for bucket in ours] == [
        [id(tensors_[index]) for index in one] for one in assigned
    ]
    assert len(ours) == 3


@pytest.mark.parametrize(("kind_", "together"), [("element", 1), ("block", 64)])
def test_sparsifiers_send_the_largest_and_lose_nothing(kind_: str, together: int) -> None:
    sparsifier = Sparsifier(kind_, 0.02)
    generator = torch.Generator().manual_seed(1)
    total, sent = torch.zeros(NUMEL), torch.zeros(NUMEL)
    for _ in range(5):
        bucket = torch.randn(NUMEL, generator=generator)
        total += bucket
        one = sparsifier.sent(0, bucket)
        units = -(-NUMEL // together)
        blocks = torch.nn.functional.pad(one, (0, units * together - NUMEL)).view(units, together).any(1)
        assert int(blocks.sum()) == -(-units * 2 // 100)
        sent += one
    assert torch.allclose(sent + sparsifier._residuals[0], total, atol=1e-5)
    first = Sparsifier(kind_, 0.02).sent(0, torch.arange(NUMEL).float())
    assert first[64 * 50 - 1] == 64 * 50 - 1
    assert not first[: NUMEL // 2].any()


def test_what_is_not_sparsified_is_sent_as_it_is() -> None:
    bucket = torch.randn(10)
    assert Sparsifier("none", 0.01).sent(0, bucket) is bucket


def test_shards_are_disjoint_and_alike_in_all_runs() -> None:
    own = [shard(103, rank, 4, 25, seed=1) for rank in range(4)]
    assert torch.cat(own).unique().numel() == 100
    assert torch.equal(own[2], shard(103, 2, 4, 25, seed=1))
    longer = shard(103, 2, 4, 60, seed=1)
    assert torch.equal(longer[:25], own[2])
    assert longer[25:50].unique().numel() == 25


def test_the_text_is_numbered_by_frequency() -> None:
    made = text(1000)
    assert int(made.words.max()) == 999
    assert made.words.shape == made.documents.shape
    counts = torch.bincount(made.words, minlength=1000)[2:]
    assert torch.equal(counts, counts.sort(descending=True).values)
    assert counts[0] > 50 * counts[-1], "skewed"


class OneWeightEach:
    """A workload with one weight for each sample, so that each rank's gradient is known."""

    samples, batch = 8, 2

    def __init__(self) -> None:
        self.module = nn.Linear(self.samples, 1, bias=False)

    def loss(self, chosen: torch.Tensor) -> torch.Tensor:
        return self.module(torch.eye(self.samples)[chosen]).mean()

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.module.parameters(), lr=1.0)


def test_parameters_follow_the_average_and_chosen_steps_are_recorded(tmp_path: Path) -> None:
    task = OneWeightEach()
    before = task.module.weight.detach().clone()
    plan = Plan(workers=2, steps=2, record_at=[2], ratio=1.0, batch=0, seed=3)
    assert [step.number for step in train(task, "none", plan, tmp_path)] == [1, 2]
    # In two steps of two ranks each of the 8 samples is seen once, with a share of a half in one of two ranks' means.
    assert torch.allclose(task.module.weight, before - 0.25)
    (found,) = replay.read(tmp_path, "line", "none").found.items()
    assert found[0] == 2
    gradients = [one.gradients()["weight"] for one in found[1]]
    for rank, gradient in enumerate(gradients):
        assert set(np.flatnonzero(gradient)) == set(shard(8, rank, 2, 4, seed=3)[2:].tolist())
        assert set(gradient) == {0.0, 0.5}
