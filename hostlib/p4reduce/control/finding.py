# SPDX-License-Identifier: Apache-2.0
"""The findings of checks: what was checked, what was found, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "problem", "skipped"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    `subject`: what was checked.
    `advice`: what to do, or "".
    """

    subject: str
    verdict: Verdict
    found: str
    advice: str = ""
