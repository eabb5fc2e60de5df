# SPDX-License-Identifier: Apache-2.0
"""The signals that terminate a command."""

from __future__ import annotations

import signal
import sys


def termination_signals() -> list[signal.Signals]:
    """Return SIGINT, SIGTERM and SIGHUP; without SIGHUP if it is ignored, as under nohup."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        numbers.remove(signal.SIGHUP)
    return numbers


def exit_on_signals() -> None:
    """Make SIGTERM and SIGHUP raise SystemExit, with the status that a shell gives to a program that a signal ended.

    Ctrl-C raises KeyboardInterrupt, as always in Python.
    """
    for number in termination_signals():
        if number != signal.SIGINT:
            signal.signal(number, lambda received, _: sys.exit(128 + received))
