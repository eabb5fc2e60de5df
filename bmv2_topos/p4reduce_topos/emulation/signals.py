# SPDX-License-Identifier: Apache-2.0
"""Signals that end the program: they raise an exception where it works, and wait where it cleans up.

`exit_on_signals` says what each raises. An ignored SIGHUP stays ignored.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from p4reduce.commands.signals import exit_on_signals

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def install() -> None:
    """Set the handlers, and let signals in that `blocked` has held back before this program was executed."""
    exit_on_signals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Signals wait in the kernel meanwhile, and for a program that is executed in the block until it installs handlers:
    Python's own would end it with a traceback while it starts."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """Yield a signal that comes meanwhile has its effect when the block is over. Does nothing in other threads than the
    main one, which no handler interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    former = {}
    try:
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                former[number] = signal.signal(number, lambda received, _: came.append(received))
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


__all__ = ["ENDING", "blocked", "install", "postponed"]
