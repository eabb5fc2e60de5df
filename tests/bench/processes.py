# SPDX-License-Identifier: Apache-2.0
"""Telling whether a benchmark left processes behind."""

from pathlib import Path

MARK = "P4REDUCE_TEST_RUN"
"""A variable of the environment that a run hands on to all that it starts."""


def marked(mark: str) -> list[int]:
    """Processes that run with our mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
