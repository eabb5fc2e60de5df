# SPDX-License-Identifier: Apache-2.0
"""Sums of hosts with one stream are those of the reference, bit for bit; and what goes wrong is said."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from p4reduce.protocol import Operation
from p4reduce.protocol.numbers import reference_allreduce

from .job import job

SEED = int(os.environ.get("P4REDUCE_SEED", "1"))


def test_a_sum() -> None:
    arrays = [np.arange(1000, dtype=np.float32) + rank for rank in range(4)]
    expected = reference_allreduce(arrays)
    with job((0, 0, 1, 1)) as running:
        print(running.engines[0].link(), running.engines[1].link())
        operations = [Operation(array.copy()) for array in arrays]
        running.reduce(operations)
        for operation in operations:
            assert operation.data.tobytes() == expected.tobytes()
