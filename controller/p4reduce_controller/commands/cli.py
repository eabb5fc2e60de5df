# SPDX-License-Identifier: Apache-2.0
"""The commands `controller`, which serves, and `status` and `loss`, which call one."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.commands.access import Access, AsJson, fail, plain, reaches_controller, with_options
from p4reduce_controller.observability.logs import start_logging
from p4reduce_controller.settings.settings import SCHEMA, load

if TYPE_CHECKING:
    from p4reduce_controller.service.controller import Controller as RunningController


def _show_example(asked: bool) -> None:
    if asked:
        from p4reduce_controller.settings.example import example

        typer.echo(example(), nl=False)
        raise typer.Exit


@with_options(SCHEMA)
def controller(
    *,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with settings, named like the options. --example-config prints an example."),
    ] = None,
    example_config: Annotated[  # noqa: ARG001 - the callback has exited before
        bool,
        typer.Option(
            "--example-config",
            callback=_show_example,
            is_eager=True,
            help="Print a complete example of a settings file, and exit.",
        ),
    ] = False,
    options: dict[str, Any],
    switch_timeout: Annotated[float, typer.Option(help="Seconds to wait at the start until a switch answers.")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log to stderr what the controller does.")] = False,
) -> None:
    """Run the controller: serve jobs on one or more P4Runtime switches, until SIGINT or SIGTERM."""
    from p4reduce_controller.base.listening import ListenError, take_all_sockets
    from p4reduce_controller.p4runtime.program import PipelineError
    from p4reduce_controller.service.run import Stopped, run
    from p4reduce_controller.standby.leader_election import serve_or_stand_by
    from p4reduce_controller.store.state import StateError
    from p4reduce_controller.switches.aggregator import SwitchError

    try:
        given = {key: SCHEMA[key].of_option(one) for key, one in options.items()}
        settings = load(config, given)
        start_logging(settings.log_format, logging.INFO if verbose else logging.WARNING)
        take_all_sockets()
        load_again = partial(load, config, given) if config is not None else None
        say = partial(_say_ready, as_json=as_json)
        if settings.store:
            say_standby = partial(_say_standby, as_json=as_json)
            asyncio.run(serve_or_stand_by(settings, switch_timeout, say, say_standby, load_again))
        else:
            asyncio.run(run(settings, switch_timeout, say, load_again))
    except Stopped as stopped:
        fail(str(stopped), 130)
    except (SettingsError, PipelineError, StateError, SwitchError, ListenError, OSError) as error:
        fail(str(error))


@reaches_controller
def status(access: Access, as_json: AsJson = False) -> None:
    """Show a controller's jobs, ranks, slots and counters."""
    reply = access.status()
    if as_json:
        typer.echo(json.dumps(plain(reply), indent=2))
    else:
        from p4reduce_controller.commands.views import show

        show(reply)


@reaches_controller
def loss(
    port: Annotated[int, typer.Option(help="Switch port.")],
    rate: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of packets to lose; 0 ends the loss.")],
    direction: Annotated[str, typer.Option(help="in (toward the switch), out or both.")] = "both",
    switch: Annotated[
        str, typer.Option(help="Switch, by name or by the address of its P4Runtime server. Default: all switches.")
    ] = "",
    *,
    access: Access,
) -> None:
    """Make a switch port lose packets, for experiments."""
    directions = {"in": pb.IN, "out": pb.OUT, "both": pb.BOTH}
    if direction not in directions:
        fail(f"--direction {direction}: accepted are in, out and both")
    request = pb.SetLossRequest(port=port, direction=directions[direction], rate=rate, switch=switch)
    access.call("SetLoss", request)
    print(f"port {port} loses {rate:.3g} of its packets, {'both ways' if direction == 'both' else direction}")


def _say_ready(controller: RunningController, as_json: bool) -> None:
    served = {"listen": controller.service.address, "page": controller.page, "metrics": controller.metrics}
    addresses = {name: address for name, address in served.items() if address}
    text = " ".join(f"{name}={address}" for name, address in addresses.items())
    print(json.dumps({"ready": True, **addresses}) if as_json else f"ready {text}", flush=True)
    notify_service_manager(f"serves {text}")


def _say_standby(addresses: Mapping[str, str], other: str, as_json: bool) -> None:
    known = {"standby": True, **addresses, "serves": other}
    said = " ".join(f"{name}={address}" for name, address in addresses.items())
    text = f"standby {said}: the controller that serves is {other}"
    print(json.dumps(known) if as_json else text, flush=True)
    notify_service_manager(text)


def notify_service_manager(status: str) -> None:
    """Tell systemd, if it asked for this by sd_notify(3), that the controller has started. `status`: one line."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    path = f"\0{address[1:]}" if address[0] == "@" else address
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
        to.sendto(f"READY=1\nSTATUS={status}".encode(), path)
