# SPDX-License-Identifier: Apache-2.0
"""`p4reduce exec`: joins a job for a program that uses the C library, and runs the program in it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from p4reduce import settings
from p4reduce.commands.reaching import TlsCa, TokenFile, tls_of, token_of, with_certificate_options
from p4reduce.commands.signals import termination_signals
from p4reduce.errors import JobAborted, P4ReduceError
from p4reduce.fastpath.engine import link_of, packed
from p4reduce.join.joining import JoinedJob, join_job
from p4reduce.join.options import JoinOptions

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

VARIABLE = "P4REDUCE_SEAT"
# Seconds that a program has to notice that its job is dead, before it is terminated. It also gets the switch's ABORT.
GRACE_S = 5.0


def check(transport: str, threads: int) -> None:
    """Raise ValueError for a transport, or a number of threads, that no C program can use."""
    if transport not in ("udp", "raw"):
        raise ValueError(f"transport={transport!r}: accepted for programs in C are udp, raw")
    if threads > 1 and transport != "udp":
        raise ValueError(
            f"threads={threads} with the transport {transport!r}: accepted is 1; only the transport 'udp' accepts more"
        )


def describe(joined: JoinedJob) -> str:
    """Return the environment variable's value, which hostlib/csrc/engine/environment.c reads."""
    link = link_of(joined.transport)
    if link is None:
        raise P4ReduceError("C programs can use the transport 'udp', and with one switch and one thread 'raw'")
    first, *more = link.sockets
    words: dict[str, object] = {
        **{name: value for name, value in asdict(joined.membership).items() if name not in ("hosts", "more_jobs")},
        "peers": ",".join(map(str, joined.membership.peers)),
        "link": link.kind,
        "socket": first,
        "switch": joined.switch,
        "local": joined.transport.local_address[0],
    }
    if link.headers is not None:
        words["headers"] = link.headers.hex()
    if more:
        words["more_sockets"] = ",".join(map(str, more))
    if link.jobs:  # a C library of an earlier release, which does not know them, refuses this word
        words["job"] = ",".join(map(str, packed(link.jobs)))
    if more_jobs := packed(joined.membership.more_jobs):
        words["more_jobs"] = ",".join(map(str, more_jobs))
    return " ".join(f"{name}={value}" for name, value in words.items())


def run(joined: JoinedJob, command: Sequence[str], job_is_dead: threading.Event) -> int:
    """Run `command` in the job and leave the job when it ends.

    Returns its exit status, or 128 + the signal that ended it.
    """
    link = link_of(joined.transport)
    program: subprocess.Popen[bytes] | None = None
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        received.append(number)
        if program is not None:
            program.send_signal(number)

    handlers = {number: signal.signal(number, forward) for number in termination_signals()}
    try:
        program = subprocess.Popen(
            command, env={**os.environ, VARIABLE: describe(joined)}, pass_fds=link.sockets if link is not None else ()
        )
    except OSError as error:
        joined.leave(f"its program did not start: {error}")
        raise P4ReduceError(f"cannot run {command[0]}: {error.strerror}") from error
    if received:  # while the program was started
        program.send_signal(received[0])
    ended = threading.Event()

    def watch(program: subprocess.Popen[bytes]) -> None:
        job_is_dead.wait()
        if not ended.wait(GRACE_S):
            program.terminate()

    threading.Thread(target=watch, args=[program], name="watch the job", daemon=True).start()
    status = program.wait()
    ended.set()
    for number, handler in handlers.items():  # from here on, a signal ends the wait for the other ranks
        signal.signal(number, handler)
    joined.leave(f"its program ended with status {status}" if status else "")
    return status if status >= 0 else 128 - status


# All arguments after the program's name are the program's, with or without a "--" before the name.
@app.command(context_settings={"allow_interspersed_args": False})
@with_certificate_options
def execute(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --.")],
    job: str = typer.Option("default", help="Ranks that give the same name reduce together."),
    rank: int = typer.Option(None, help="This program's rank, from 0. Default: the variable RANK."),
    world_size: int = typer.Option(None, help="Number of ranks in the job. Default: the variable WORLD_SIZE."),
    controller: str = typer.Option(
        None, help="HOST:PORT of the controller. Default: P4REDUCE_CONTROLLER, or 127.0.0.1:7700."
    ),
    slots: int = typer.Option(
        0, help="Slots to ask for, which is the number of packets in flight. 0: the controller's default."
    ),
    transport: str = typer.Option(None, help="udp or raw. Default: P4REDUCE_TRANSPORT, or udp."),
    interface: str = typer.Option(
        None, help="Network interface toward the switch. Default: the one that the route uses."
    ),
    threads: int = typer.Option(None, help="Threads of this rank's engine. Default: P4REDUCE_THREADS, or 1."),
    timeout: float = typer.Option(settings.TIMEOUT, help="Seconds to wait until the job is ready."),
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
) -> None:
    """Join a job, and run a program that uses the C library as one of its ranks."""
    job_is_dead = threading.Event()

    def abort(error: JobAborted) -> None:
        typer.echo(f"p4reduce exec: {error}", err=True)
        job_is_dead.set()

    try:
        if shutil.which(command[0]) is None:
            raise P4ReduceError(f"cannot run {command[0]}: there is no executable program of that name")
        options = JoinOptions.checked(
            controller=controller,
            job=job,
            rank=rank,
            world_size=world_size,
            slots=slots,
            transport=transport,
            interface=interface,
            token=token_of(token_file),
            tls=tls_of(tls_ca),
            timeout=timeout,
            threads=threads,
        )
        check(options.transport, options.threads)
        joined = join_job(options, on_abort=abort)
        status = run(joined, command, job_is_dead)
    except (P4ReduceError, ValueError) as error:
        typer.echo(f"p4reduce exec: {error}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(status)
