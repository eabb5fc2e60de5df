# SPDX-License-Identifier: Apache-2.0
"""Commands for operators of a controller: its jobs, its switches, and what they do now."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from p4reduce.commands.tables import show as show_table
from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.base.toml import read_toml
from p4reduce_controller.commands import views
from p4reduce_controller.commands.access import Access, AsJson, fail, plain, reaches_controller
from p4reduce_controller.commands.views import Rates
from p4reduce_controller.settings.texts import parse_ports, parse_uplink

_SLOTS_TIMEOUT = 60.0  # seconds; the controller reads the slots for one request at a time
_ADD_TIMEOUT = 30.0  # seconds; the controller connects to the new switch before it answers
_DRAIN_POLL_INTERVAL = 1.0  # seconds between two requests for the status, while the command waits for a drain
_SLOTS_PER_REQUEST = 16  # the most that the controller accepts
_MIN_INTERVAL = 0.2  # seconds

Tenant = Annotated[str, typer.Option(help="Tenant of the job, if several tenants have a job of that name.")]

jobs = typer.Typer(help="List, show and abort a controller's jobs.", no_args_is_help=True, add_completion=False)
switches = typer.Typer(
    help="List, show, add, drain and remove a controller's switches.", no_args_is_help=True, add_completion=False
)


@jobs.command("list")
@reaches_controller
def list_jobs(access: Access, as_json: AsJson = False) -> None:
    """Show all jobs, with state, ranks, slots and the ranks that each waits for; then the jobs in the queue."""
    status = access.status()
    _show(plain(status)["jobs"] if as_json else views.jobs(status))


@jobs.command("show")
@reaches_controller
def show_job(
    job: Annotated[str, typer.Argument(help="Name of the job.")],
    tenant: Tenant = "",
    *,
    access: Access,
    as_json: AsJson = False,
) -> None:
    """Show one job: where its ranks and slots are, and its problems."""
    status = access.status()
    candidates = [one for one in status.jobs if tenant in ("", one.tenant)]
    if len(tenants := {one.tenant for one in candidates if one.name == job}) > 1:
        fail(
            f"job {job!r}: the tenants {', '.join(sorted(tenants))} each have a job of that name; choose one with "
            "--tenant"
        )
    chosen = candidates[find((one.name for one in candidates), "job", job)]
    _show(plain(chosen) if as_json else views.job(status, chosen))


@jobs.command("abort")
@reaches_controller
def abort_job(
    job: Annotated[str, typer.Argument(help="Name of the job.")],
    reason: Annotated[str, typer.Option(help="Reason to give in the ranks' errors.")] = "",
    tenant: Tenant = "",
    *,
    access: Access,
) -> None:
    """Abort a job, or remove it from the queue. Its ranks get an error with the reason."""
    request = pb.AbortJobRequest(job=job, tenant=tenant, reason=reason)
    access.call("AbortJob", request)


@reaches_controller
def slots(
    job: Annotated[str, typer.Argument(help="Name of the job.")],
    first: Annotated[int, typer.Option(min=0, help="First of the job's slots to show.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="Number of slots to show.")] = 16,
    tenant: Tenant = "",
    *,
    access: Access,
    as_json: AsJson = False,
) -> None:
    """Show the state of a job's slots in the switches: the round of each half, and the ranks counted in it.

    The controller asks the switches by packet-out, which changes nothing there.
    """
    merged = pb.SlotsReply()
    slot, end = first, first + count
    while slot < end and (slot == first or slot < merged.slots):  # the first reply says how many slots the job has
        request = pb.SlotsRequest(job=job, tenant=tenant, first=slot, count=min(_SLOTS_PER_REQUEST, end - slot))
        merged.MergeFrom(access.call("Slots", request, _SLOTS_TIMEOUT))
        slot += request.count
    _show(plain(merged) if as_json else views.slots(job, merged))


@switches.command("list")
@reaches_controller
def list_switches(access: Access, as_json: AsJson = False) -> None:
    """Show all switches: state, parent, slots in use, and jobs."""
    status = access.status()
    _show(plain(status)["switches"] if as_json else views.switches(status))


@switches.command("show")
@reaches_controller
def show_switch(
    name: Annotated[str, typer.Argument(help="Name of the switch.")],
    *,
    access: Access,
    as_json: AsJson = False,
) -> None:
    """Show one switch: its ports, which of them are up, and the ranks behind each."""
    status = access.status()
    chosen = status.switches[find((one.name for one in status.switches), "switch", name)]
    _show(plain(chosen) if as_json else views.switch(status, chosen))


@switches.command("add")
@reaches_controller
def add_switch(
    name: Annotated[str, typer.Argument(help="Name for the switch. Default: the value of --switch.")] = "",
    file: Annotated[
        Path | None, typer.Option(help="TOML file with one [\\[switches]] table, instead of the options below.")
    ] = None,
    switch: Annotated[str, typer.Option(help="HOST:PORT of its P4Runtime server.")] = "",
    address: Annotated[str, typer.Option(help="IP[:UDPPORT] of its aggregator.")] = "",
    mac: Annotated[str, typer.Option(help="Its MAC address (default: made of its IP address).")] = "",
    ports: Annotated[str, typer.Option(help="Ports in use, as 1,2,3 (default 1).")] = "",
    uplink: Annotated[
        list[str], typer.Option(help="PORT=NAME: the port that leads to a parent, and the parent's name; repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    spare: Annotated[
        bool, typer.Option("--spare", help="New jobs use it only while no other switch can be used.")
    ] = False,
    *,
    access: Access,
) -> None:
    """Add a switch while jobs run. Jobs that begin from now on use it.

    A controller without --state or --store forgets the switch when it ends: add it to its --config too.
    """
    given: dict[str, Any] = {"name": name, "switch": switch, "address": address, "mac": mac}
    table = {**(_table_in(file) if file is not None else {}), **{key: text for key, text in given.items() if text}}
    try:
        if spare:
            table["spare"] = True
        if ports:
            table["ports"] = parse_ports(ports)
        if uplink:
            # parse_uplink takes LEAF:PORT=SPINE, as in the controller's --uplink, and its errors quote that text.
            parts = [parse_uplink(f"{table.get('name', 'it')}:{text}") for text in uplink]
            table["uplink"] = [{"port": port, "to": parent} for _, port, parent in parts]
    except SettingsError as error:
        fail(str(error))
    # With one of them, the controller says what is missing, or uses its default.
    if file is None and not (switch or address):
        fail("the addresses of the switch are missing: give --switch HOST:PORT and --address IP, or --file")
    request = pb.AddSwitchRequest(settings=json.dumps(table))
    _print_said(access.call("AddSwitch", request, _ADD_TIMEOUT))


@switches.command("drain")
@reaches_controller
def drain_switch(
    name: Annotated[str, typer.Argument(help="Name of the switch.")],
    undo: Annotated[bool, typer.Option("--undo", help="End the draining: the switch takes new jobs again.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until no job has slots at the switch.")] = False,
    *,
    access: Access,
) -> None:
    """Drain a switch: it takes no new jobs, and running jobs go on to their end."""
    _print_said(access.call("DrainSwitch", pb.DrainSwitchRequest(name=name, undo=undo)))
    while wait and not undo:
        if not any(one.name == name and one.jobs for one in access.status().switches):
            return
        time.sleep(_DRAIN_POLL_INTERVAL)


@switches.command("remove")
@reaches_controller
def remove_switch(
    name: Annotated[str, typer.Argument(help="Name of the switch.")],
    now: Annotated[
        bool, typer.Option("--now", help="End the jobs that run there; their ranks get an error that says why.")
    ] = False,
    *,
    access: Access,
) -> None:
    """Remove a switch: it takes no new jobs, and the controller disconnects when its last job has ended.

    A switch that is added under the same name meanwhile takes the new jobs.
    """
    request = pb.RemoveSwitchRequest(name=name, now=now)
    _print_said(access.call("RemoveSwitch", request))


@reaches_controller
def top(
    interval: Annotated[float, typer.Option(min=_MIN_INTERVAL, help="Seconds between two updates.")] = 2.0,
    once: Annotated[bool, typer.Option(help="Show one interval, and exit.")] = False,
    *,
    access: Access,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON for each interval.")] = False,
) -> None:
    """Show jobs, packets per second, slots, and the ranks that jobs wait for, refreshed until Ctrl-C."""
    rates = Rates(access.status(), time.monotonic())
    console = Console()
    once = once or not (as_json or console.is_terminal)
    try:
        with Live(console=console, auto_refresh=False, screen=True) if not (once or as_json) else nullcontext() as live:
            while True:
                time.sleep(interval)
                rates.update(access.status(), time.monotonic())
                if as_json:
                    print(json.dumps({**plain(rates.status), "packets_per_s": rates.by_switch}), flush=True)
                elif live is None:
                    show_table(views.top(rates, access.controller), console)
                else:
                    live.update(views.top(rates, access.controller), refresh=True)
                if once:
                    return
    except KeyboardInterrupt:
        return


def find(names: Iterable[str], what: str, wanted: str) -> int:
    """Return the index of the wanted name. If there is none, end the command with an error, which calls it `what`."""
    known = list(names)
    if wanted not in known:
        fail(f"there is no {what} {wanted!r}; there {'is' if len(known) == 1 else 'are'} {', '.join(known) or 'none'}")
    return known.index(wanted)


def _show(output: Any) -> None:
    """Print JSON values as JSON, and anything else as a table."""
    if isinstance(output, list | dict):
        typer.echo(json.dumps(output, indent=2))
        return
    show_table(output, Console())


def _print_said(reply: pb.SwitchesReply) -> None:
    for line in reply.said:
        typer.echo(line)


def _table_in(file: Path) -> dict[str, Any]:
    """Return the only [[switches]] table of the file."""
    try:
        values = read_toml("--file", file)
    except SettingsError as error:
        fail(str(error))
    found = values.get("switches")
    if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], dict) or len(values) != 1:
        fail(f"--file {file}: must hold exactly one [[switches]] table, and nothing else")
    return dict(found[0])
