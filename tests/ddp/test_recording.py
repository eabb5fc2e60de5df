# SPDX-License-Identifier: Apache-2.0
"""Tests of the gradients that a recorder writes, and of when it writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from p4reduce.ddp import Recorder, noop_hook
from p4reduce.tensors.recordings import Facts, path_of
from p4reduce_bench.recordings import find
from tests.support.hostlib.buckets import Bucket, model

LAYOUT = [["b"], ["c", "a"]]


def gradient(name: str, iteration: int) -> torch.Tensor:
    return torch.full((4,), float(ord(name) + iteration))


def train(recorder: Recorder, made: torch.nn.Module, iterations: int, dtype: torch.dtype = torch.float32) -> None:
    parameters = dict(made.named_parameters())
    hook: Any = recorder.wrap(noop_hook)
    for iteration in range(iterations):
        for number, names in enumerate(LAYOUT):
            flat = torch.cat([gradient(name, iteration) for name in names]).to(dtype)
            bucket = Bucket(flat, [parameters[name] for name in names], number, number == len(LAYOUT) - 1)
            assert hook(None, bucket).wait() is flat


def test_every_few_iterations_of_this_rank(tmp_path: Path) -> None:
    made = model(a=(4,), b=(2, 2), c=(4,))
    train(Recorder(tmp_path, made, every=3, files=2, rank=1, world_size=2), made, 12)
    found = find([tmp_path])
    assert list(found) == [3, 6]  # 0 is not recorded, and two files are enough
    for iteration, (recording,) in found.items():
        assert recording.path == path_of(tmp_path, iteration, 1)
        assert recording.facts == Facts(1, 2, iteration, LAYOUT)
        with np.load(recording.path) as file:
            for name in "abc":
                assert file[name].tolist() == gradient(name, iteration).tolist()


def test_bfloat16_is_written_as_float32(tmp_path: Path) -> None:
    made = model(a=(4,), b=(2, 2), c=(4,))
    train(Recorder(tmp_path, made, every=1, rank=0, world_size=1), made, 2, torch.bfloat16)
    with np.load(path_of(tmp_path, 1, 0)) as file:
        assert file["a"].dtype == np.float32
        assert file["a"].tolist() == gradient("a", 1).tolist()


def test_what_is_recorded_does_not_change_with_what_is_reduced(tmp_path: Path) -> None:
    made = model(a=(4,), b=(2, 2), c=(4,))
    recorder = Recorder(tmp_path, made, every=1, rank=0, world_size=1)

    def clearing(_: Any, bucket: Any) -> Any:
        bucket.buffer().zero_()

    hook: Any = recorder.wrap(clearing)
    parameters = dict(made.named_parameters())
    for _ in range(2):
        hook(None, Bucket(torch.ones(4), [parameters["a"]], 0, False))
        hook(None, Bucket(torch.ones(8), [parameters["b"], parameters["c"]], 1, True))
    with np.load(path_of(tmp_path, 1, 0)) as file:
        assert file["a"].tolist() == [1.0] * 4


def test_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="every=0: must be an integer from 1"):
        Recorder(tmp_path, model(a=(4,)), every=0, rank=0, world_size=1)
    recorder = Recorder(tmp_path, model(a=(4,)), every=1, rank=0, world_size=1)
    made = model(a=(4,), b=(2, 2), c=(4,))
    with pytest.raises(ValueError, match="the given model does not have"):
        train(recorder, made, 2)
