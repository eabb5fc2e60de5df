# SPDX-License-Identifier: Apache-2.0
"""Handling of signals that end the program: they raise an exception, but wait while it cleans up.

`exit_on_signals` documents which exception each signal raises. A SIGHUP that is ignored stays ignored.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from p4reduce.commands.signals import exit_on_signals

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def install() -> None:
    """Set the handlers, and unblock the signals that `blocked` held back before this program was executed."""
    exit_on_signals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Block the signals during the block, so that they stay pending in the kernel.

    A program that is executed in the block inherits the mask, until it calls `install`. Otherwise Python's default
    handlers would end it with a traceback while it starts.
    """
    former = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """Postpone signals that arrive during the block until its end.

    This does nothing outside the main thread, since handlers interrupt only the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    former = {}
    try:
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                former[number] = signal.signal(number, lambda number, _: received.append(number))
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        if received:  # the first one raises the exception that ends the program
            signal.raise_signal(received[0])


__all__ = ["ENDING", "blocked", "install", "postponed"]
