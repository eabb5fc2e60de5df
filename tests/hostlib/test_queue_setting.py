# SPDX-License-Identifier: Apache-2.0
"""How long a rank waits in the queue, as the environment says."""

from __future__ import annotations

import pytest

from p4reduce import settings


@pytest.mark.parametrize(("written", "seconds"), [("", 0.0), ("600", 600.0), ("1.5", 1.5)])
def test_seconds_in_the_queue(monkeypatch: pytest.MonkeyPatch, written: str, seconds: float) -> None:
    monkeypatch.setenv("P4REDUCE_QUEUE", written)
    assert settings.queue() == seconds


@pytest.mark.parametrize("written", ["soon", "-1", "nan", "inf", "1e9"])
def test_what_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("P4REDUCE_QUEUE", written)
    with pytest.raises(ValueError, match=f"P4REDUCE_QUEUE='{written}': must be a number of seconds from 0 to 604800"):
        settings.queue()
