# SPDX-License-Identifier: Apache-2.0
"""Ranks agree on when to begin, through whatever the system does to values."""

import time
from typing import Any

import numpy as np
import pytest
import torch

from p4reduce_bench.allreduce import rank
from p4reduce_bench.peers.compressed import LEVELS


class Rounding:
    """A system of one rank, whose results are rounded."""

    rank = 0
    slots = 0

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def prepare(self, own: Any, dtype: str, wire: Any = "auto") -> Any:  # noqa: ARG002
        return torch.from_numpy(own)

    def reduce(self, work: Any) -> Any:
        if self._kind != "int8":
            return work.to(getattr(torch, self._kind))
        scale = (work.max() - work.min()) / LEVELS
        return ((work - work.min()) / scale).round() * scale + work.min()

    def values(self, result: Any) -> Any:
        return result.float().numpy()

    def wrong(self, case: Any, values: Any, exact: Any) -> int:  # noqa: ARG002
        return int(np.count_nonzero(values != exact))

    def traffic(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "int8"])
def test_a_start_survives_rounding(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for now in (0.0, 26_755.923, 4095.999 * 4096, 3e8):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        assert rank.agree_on_start(Rounding(kind)) == pytest.approx(now + rank._AHEAD_S, abs=0.002)
