# SPDX-License-Identifier: Apache-2.0
"""Spans are in a profile while one is made, and nothing else."""

from __future__ import annotations

import contextlib

import pytest

pytest.importorskip("torch", reason="needs torch")

import torch

from p4reduce.api.profiles import span


def test_a_span_has_a_name_in_the_profile() -> None:
    with torch.profiler.profile() as profile, span("all_reduce wait"):
        torch.ones(3)
    assert "p4reduce:all_reduce wait" in {event.name for event in profile.events()}


def test_without_a_profile_it_is_nothing() -> None:
    assert isinstance(span("all_reduce"), contextlib.nullcontext)
