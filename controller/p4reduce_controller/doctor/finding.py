# SPDX-License-Identifier: Apache-2.0
"""What was looked at, and what is to be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "problem", "skipped"]


@dataclass(frozen=True)
class Finding:
    """`subject`: what was looked at. `advice`: what to do, or ""."""

    subject: str
    verdict: Verdict
    found: str
    advice: str = ""
