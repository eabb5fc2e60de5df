# SPDX-License-Identifier: Apache-2.0
"""Commands: `controller` serves; `status` and `loss` ask one that does."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from google.protobuf import json_format

from p4reduce.commands.reaching import Controller, TlsCa, TokenFile, shows_certificate, tls_of, token_of
from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import jobs_pb2_grpc as rpc
from p4reduce.control.asking import ANSWER_TIMEOUT, Metadata, ask
from p4reduce.control.channel import DEFAULT_CONTROLLER
from p4reduce.errors import JoinError
from p4reduce_controller.seeing.logs import FORMATS, start_logging
from p4reduce_controller.service.service_manager import tell
from p4reduce_controller.settings.options import with_options
from p4reduce_controller.settings.schema import SettingsError
from p4reduce_controller.settings.settings import SCHEMA, check_store, load

if TYPE_CHECKING:
    from p4reduce_controller.service.service import Service

_T = TypeVar("_T")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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
    example_config: Annotated[  # noqa: ARG001 - it is over before the command begins
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
    from p4reduce_controller.service.listening import ListenError
    from p4reduce_controller.service.run import Stopped, run
    from p4reduce_controller.service.sockets import take_all_sockets
    from p4reduce_controller.store.state import StateError
    from p4reduce_controller.store.turns import take_turns
    from p4reduce_controller.switches.aggregator import SwitchError
    from p4reduce_controller.switches.program import PipelineError

    try:
        given = {key: SCHEMA[key].of_option(one) for key, one in options.items()}
        settings = load(config, given)
        check_store(settings)
        if settings.log_format not in FORMATS:
            raise SettingsError(f"--log-format {settings.log_format}: accepted are {' or '.join(FORMATS)}")
        start_logging(settings.log_format, logging.INFO if verbose else logging.WARNING)
        take_all_sockets()
        again = partial(load, config, given) if config is not None else None
        say = partial(_say_ready, as_json=as_json)
        if settings.store:
            say_standby = partial(_say_standby, as_json=as_json)
            asyncio.run(take_turns(settings, switch_timeout, say, say_standby, again))
        else:
            asyncio.run(run(settings, switch_timeout, say, again))
    except Stopped as stopped:
        _fail(str(stopped), 130)
    except (SettingsError, PipelineError, StateError, SwitchError, ListenError, OSError) as error:
        _fail(str(error))


@shows_certificate
def status(
    controller: Controller = DEFAULT_CONTROLLER,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    """Show a controller's jobs, ranks, slots and counters."""
    reply = _ask(
        controller,
        token_file,
        tls_ca,
        lambda stub, metadata: stub.Status(pb.StatusRequest(), timeout=ANSWER_TIMEOUT, metadata=metadata),
    )
    if as_json:
        # Not MessageToJson: it writes 64-bit numbers as strings.
        typer.echo(json.dumps(_plain(reply), indent=2))
    else:
        from p4reduce_controller.commands.tables import show

        show(reply)


@shows_certificate
def loss(
    port: Annotated[int, typer.Option(help="Switch port.")],
    rate: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of packets to lose; 0 ends the loss.")],
    direction: Annotated[str, typer.Option(help="in (toward the switch), out or both.")] = "both",
    switch: Annotated[
        str, typer.Option(help="Switch, by name or by the address of its P4Runtime server. Default: all switches.")
    ] = "",
    controller: Controller = DEFAULT_CONTROLLER,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
) -> None:
    """Make a switch port lose packets, for experiments."""
    directions = {"in": pb.IN, "out": pb.OUT, "both": pb.BOTH}
    if direction not in directions:
        _fail(f"--direction {direction}: accepted are in, out and both")
    request = pb.SetLossRequest(port=port, direction=directions[direction], rate=rate, switch=switch)
    _ask(
        controller,
        token_file,
        tls_ca,
        lambda stub, metadata: stub.SetLoss(request, timeout=ANSWER_TIMEOUT, metadata=metadata),
    )
    print(f"port {port} loses {rate:.3g} of its packets, {'both ways' if direction == 'both' else direction}")


def _say_ready(service: Service, as_json: bool) -> None:
    served = {"listen": service.listen, "page": service.page, "metrics": service.metrics}
    places = {name: place for name, place in served.items() if place}
    text = " ".join(f"{name}={place}" for name, place in places.items())
    print(json.dumps({"ready": True, **places}) if as_json else f"ready {text}", flush=True)
    tell(f"serves {text}")


def _say_standby(places: Mapping[str, str], other: str, as_json: bool) -> None:
    known = {"standby": True, **places, "serves": other}
    said = " ".join(f"{name}={place}" for name, place in places.items())
    text = f"standby {said}: the controller that serves is {other}"
    print(json.dumps(known) if as_json else text, flush=True)
    tell(text)


def _ask(
    address: str, token_file: Path | None, tls_ca: Path | None, call: Callable[[rpc.JobsStub, Metadata], _T]
) -> _T:
    try:
        tls = tls_of(tls_ca)
        return ask(address, token_of(token_file), tls, call)
    except (JoinError, ValueError) as error:
        _fail(str(error))


def _plain(reply: pb.StatusReply) -> dict[str, Any]:
    """The reply with all its fields, and numbers as numbers."""
    plain: dict[str, Any] = json_format.MessageToDict(
        reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    switches = plain["switches"]
    outcomes = [switch["outcomes"] for switch in switches]
    losses = (loss for switch in switches for loss in switch["losses"])
    traffic = (one for job in plain["jobs"] for one in job["traffic"])
    for counts in (plain, *outcomes, *losses, *traffic):
        for name, value in counts.items():
            if isinstance(value, str) and value.isdigit():
                counts[name] = int(value)
    return plain


def _fail(message: str, status: int = 1) -> NoReturn:
    typer.echo(f"p4reduce: {message}", err=True)
    raise typer.Exit(status)
