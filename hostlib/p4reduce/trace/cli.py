# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce trace`."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from p4reduce.commands.reaching import TlsCa, TokenFile, tls_of, token_of, with_certificate_options
from p4reduce.control.channel import DEFAULT_CONTROLLER
from p4reduce.errors import P4ReduceError
from p4reduce.protocol.constants import AGGREGATION_PORT, BLOCK_SIZES_ACCEPTED, LANES_ACCEPTED
from p4reduce.protocol.packet import Codec
from p4reduce.trace import captures, page, perfetto
from p4reduce.trace.frames import Datagram
from p4reduce.trace.jobs import Follower, asked, find, ports, running
from p4reduce.trace.merging import merge
from p4reduce.trace.model import Trace, load, save
from p4reduce.trace.rounds import trace_of
from p4reduce.trace.summary import summarise

trace = typer.Typer(help="Record and view a job's rounds.", no_args_is_help=True, add_completion=False,
                    pretty_exceptions_enable=False)  # fmt: skip

AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
Lanes = Annotated[int, typer.Option(help="Lanes of the P4 program. Default: found from the packets' lengths.")]
BlockSize = Annotated[
    int, typer.Option(help="Values in a block of the P4 program. Default: found from the packets' lengths.")
]
_SUFFIX = ".trace.json"


@trace.callback()
def root() -> None:
    """Record and view a job's rounds: which workers were late, which packets were lost, which blocks were skipped."""


@trace.command()
@with_certificate_options
def record(
    job: Annotated[str, typer.Argument(help="The job's name or number. Default: the job with the most packets.")] = "",
    pcap: Annotated[
        list[Path] | None,
        typer.Option(help="Capture of tcpdump or Wireshark to read, instead of listening. May be repeated."),
    ] = None,
    interface: Annotated[
        list[str] | None, typer.Option(help="Interface to listen on, which needs root. May be repeated. Default: all.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds to listen. Ctrl-C ends it earlier.")
    ] = 10.0,
    wait: Annotated[
        float,
        typer.Option(
            min=0,
            max=86400,
            help="Seconds to wait until the job of that name begins. It is recorded until it ends, or for --seconds.",
        ),
    ] = 0.0,
    packets: Annotated[int, typer.Option(min=100, max=5_000_000, help="Packets to keep: the latest ones.")] = 200_000,
    out: Annotated[Path, typer.Option("--out", "-o", help="Trace file to write.")] = Path(f"rounds{_SUFFIX}"),
    controller: Annotated[
        str,
        typer.Option(
            help="HOST:PORT of the controller; separate several with commas. It knows the job's number, and the UDP "
            "ports of its switches if they are not 31314.",
            envvar="P4REDUCE_CONTROLLER",
        ),
    ] = "",
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    lanes: Lanes = 0,
    block_size: BlockSize = 0,
    as_json: AsJson = False,
) -> None:
    """Record rounds from packets that pass this host, or from captures.

    Recording does not disturb jobs. It works on the host of a rank, and on a machine that runs a software switch.
    """
    with _explained():
        codec = _codec(lanes, block_size)
        if pcap and interface:
            raise P4ReduceError("--pcap and --interface: give only one of them")
        named = bool(job) and not job.isdigit()
        if named and pcap:
            raise P4ReduceError(
                f"job {job!r}: captures hold job numbers and no names; give the number, which `p4reduce status` shows"
            )
        if wait and not named:
            raise P4ReduceError(f"--wait {wait:g}: give the job's name as well, as `p4reduce status` shows it")
        status = known = None
        at = controller or DEFAULT_CONTROLLER
        ask = partial(asked, at, token_of(token_file), tls_of(tls_ca))
        if named or (controller and not pcap):
            status = ask()
        if named and not wait and status is not None:
            known = running(status, job, at)
        listened = (status and ports(status)) or (AGGREGATION_PORT,)
        follower = Follower(lambda: find(ask(), job), wait) if wait else None
        if pcap:
            found, missed = _captured(pcap), 0
        else:
            found, missed = _heard(interface or [], seconds, packets, listened, follower)
        if follower is not None:
            known = follower.known
        elif known is not None:
            with contextlib.suppress(
                P4ReduceError
            ):  # ranks that were not heard when the recording began have names now
                known = known.updated(find(ask(), job)) or known
        heads, codec, cut = merge(found, codec)
        if known is None:
            made = trace_of(heads, codec, cut, job=(int(job),) if job else (), missed=missed)
        else:
            made = trace_of(heads, codec, cut, job=known.numbers, name=job, names=known.names, missed=missed)
        save(made, out)
        _say(made, [out], as_json=as_json)


@trace.command()
def view(
    file: Annotated[list[Path], typer.Argument(help="A trace of `p4reduce trace record`, or captures (pcap, pcapng).")],
    html: Annotated[Path | None, typer.Option(help="HTML page to write. Default: beside the file.")] = None,
    perfetto_file: Annotated[
        Path | None, typer.Option("--perfetto", help="File to write for https://ui.perfetto.dev.")
    ] = None,
    job: Annotated[
        int | None, typer.Option(help="Number of the job in the captures. Default: the job with the most packets.")
    ] = None,
    lanes: Lanes = 0,
    block_size: BlockSize = 0,
    as_json: AsJson = False,
) -> None:
    """Draw a trace as one self-contained HTML page, and as a file for Perfetto."""
    with _explained():
        codec = _codec(lanes, block_size)
        if len(file) > 1 and (traces := [one for one in file if one.suffix == ".json"]):
            raise P4ReduceError(f"{traces[0]}: a trace must be the only file; several captures can be given together")
        if len(file) == 1 and file[0].suffix == ".json":
            made = load(file[0])
        else:
            made = trace_of(*merge(_captured(file), codec), job=() if job is None else (job,))
        first = file[0]
        stem = first.name.removesuffix(_SUFFIX) if first.name.endswith(_SUFFIX) else first.stem
        where = html or first.with_name(f"{stem}.html")
        written = [where]
        page.write(made, where)
        if perfetto_file is not None:
            perfetto.write(made, perfetto_file)
            written.append(perfetto_file)
        _say(made, written, as_json=as_json)


@trace.command()
def dissector() -> None:
    """Print a Lua plugin with which Wireshark and tshark dissect the packets.

    p4reduce trace dissector > p4reduce.lua
    """
    from p4reduce.trace.dissector import lua

    typer.echo(lua(), nl=False)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Print an error as one line, and exit with status 1."""
    try:
        yield
    except (P4ReduceError, OSError, ValueError) as error:
        typer.echo(f"p4reduce trace: {error}", err=True)
        raise typer.Exit(1) from None


def _codec(lanes: int, block_size: int) -> Codec | None:
    if not lanes and not block_size:
        return None
    for option, value, accepted in (
        ("--lanes", lanes, LANES_ACCEPTED),
        ("--block-size", block_size, BLOCK_SIZES_ACCEPTED),
    ):
        if value not in accepted:
            raise P4ReduceError(
                f"{option} {value}: accepted are {', '.join(map(str, accepted))}; give --lanes and --block-size "
                "together"
            )
    return Codec(lanes, block_size)


def _captured(files: list[Path]) -> list[list[Datagram]]:
    found: list[list[Datagram]] = []
    for file in files:
        captured = captures.read(file)
        found += captured.interfaces
        if not captured.whole:
            typer.echo(
                f"p4reduce trace: {file} ends within a packet: what came afterwards is not in the trace", err=True
            )
    return found


def _heard(
    interfaces: list[str], seconds: float, packets: int, ports: Sequence[int], follower: Follower | None
) -> tuple[list[list[Datagram]], int]:
    """Return the packets that pass each interface, and how many packets were missed."""
    from p4reduce.trace.live import Recorder

    console = Console(stderr=True)
    with Recorder(interfaces, packets, ports) as recorder:
        began = time.monotonic()
        with console.status("listening") as status, contextlib.suppress(KeyboardInterrupt):

            def tell(seen: int) -> None:
                status.update(f"{seen:,} packets; Ctrl-C ends")

            if follower is None:
                recorder.record(seconds, tell)
            else:
                typer.echo("listening; start the job now", err=True)
                follower.record(recorder, seconds, tell)
        took = time.monotonic() - began
        if follower is not None and follower.known is None:
            raise P4ReduceError(f"the job has not begun within {took:.1f} s: wait longer with --wait")
        found = recorder.captures()
        if not any(found):
            at = f" at {', '.join(interfaces)}" if interfaces else ""
            raise P4ReduceError(
                f"no packet to or from UDP port {' or '.join(map(str, ports))} passed{at} within {took:.1f} s. Ranks "
                "of one host reduce in its memory and send no packets: set P4REDUCE_LOCAL=off for them. Otherwise "
                "listen on a rank's host, or at a switch"
            )
        return found, recorder.missed


def _say(made: Trace, written: list[Path], *, as_json: bool) -> None:
    summary = summarise(made)
    if as_json:
        typer.echo(json.dumps({**summary.as_dict(), "files": [str(one) for one in written]}))
        return
    for text in [*summary.said, f"written: {', '.join(map(str, written))}"]:
        typer.echo(text)
