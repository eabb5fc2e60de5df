# SPDX-License-Identifier: Apache-2.0
"""Messages of the backend about tensors that the switch does not carry."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from p4reduce.distributed import support  # noqa: E402


def test_float64_is_told_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "_WARNED", set())
    with caplog.at_level(logging.WARNING):
        support.tell_of_gloo("all_reduce", torch.ones(4, dtype=torch.float64))  # a loss
        support.tell_of_gloo("all_reduce", torch.ones(4096, dtype=torch.bool))
        assert caplog.messages == []
        for _ in range(2):
            support.tell_of_gloo("all_reduce", torch.ones(4096, dtype=torch.float64))
    assert caplog.messages == [
        "all_reduce of 4096 float64 values uses Gloo, because the switch adds only float32, float16, "
        "bfloat16, int32; model.float() converts a model to float32"
    ]
