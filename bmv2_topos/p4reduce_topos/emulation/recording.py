# SPDX-License-Identifier: Apache-2.0
"""Recording of a run: a trace of the rounds, from the packets at all switch ports, and its HTML page."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from p4reduce.errors import P4ReduceError
from p4reduce.trace import page
from p4reduce.trace.live import Recorder, listening
from p4reduce.trace.merging import merge
from p4reduce.trace.model import save
from p4reduce.trace.rounds import trace_of
from p4reduce.trace.summary import summarise

SUFFIX = ".trace.json"


@contextlib.contextmanager
def recorded(file: Path | None, say: Callable[[str], None]) -> Iterator[None]:
    """Record the rounds in this network namespace during the block, and pass a summary to `say`.

    file: the file for the trace; None records nothing.

    If the block raises, Ctrl-C included, the trace is written all the same. Raises P4ReduceError if no round was seen.
    """
    if file is None:
        yield
        return
    with Recorder() as recorder:
        try:
            with listening(recorder):
                yield
        except BaseException:
            try:
                _write_trace(recorder, file, say)
            except (P4ReduceError, OSError) as error:
                say(f"no trace is written: {error}")
            raise
        _write_trace(recorder, file, say)


def _write_trace(recorder: Recorder, file: Path, say: Callable[[str], None]) -> None:
    """Write the trace and its page, and pass a summary to `say`. Raises P4ReduceError or OSError."""
    captures = recorder.captures()
    trace = trace_of(*merge(captures), missed=recorder.missed)
    file.parent.mkdir(parents=True, exist_ok=True)
    save(trace, file)
    html = file.with_name(f"{file.name.removesuffix(SUFFIX)}.html")
    page.write(trace, html)
    for text in [*summarise(trace).said, f"written: {file}, {html}"]:
        say(text)
