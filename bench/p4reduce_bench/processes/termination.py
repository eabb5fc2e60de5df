# SPDX-License-Identifier: Apache-2.0
"""The end of a command: its error message and its exit status."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import typer
from rich.console import Console
from rich.markup import escape

from p4reduce.errors import P4ReduceError


@contextlib.contextmanager
def command(
    *,
    stopped: str = "stopped: nothing is left running",
    errors: tuple[type[Exception], ...] = (P4ReduceError,),
) -> Iterator[None]:
    """End the program with a line on stderr: with status 130 on Ctrl-C, with status 1 on one of `errors`."""
    console = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another one would only print a traceback
        console.print(stopped)
        raise typer.Exit(130) from None
    except OSError as error:  # as of a disk that is full
        where = f"{error.filename}: " if error.filename else ""
        console.print(f"[red]error:[/] {escape(f'{where}{error.strerror or error}')}")
        raise typer.Exit(1) from None
    except errors as error:
        console.print(f"[red]error:[/] {escape(str(error))}")
        raise typer.Exit(1) from None
