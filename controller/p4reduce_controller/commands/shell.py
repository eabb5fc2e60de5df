# SPDX-License-Identifier: Apache-2.0
"""The command `shell`, which runs p4runtime-shell.

p4runtime-shell needs a protobuf older than the controller's, so it is in a Python environment of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.grpc_channels import PROXY_VARIABLES, grpc_target
from p4reduce_controller.commands.access import Access, fail, reaches_controller
from p4reduce_controller.commands.operating import find

PACKAGES = ("p4runtime-shell==0.0.6", "protobuf==3.20.3")
VARIABLE = "P4REDUCE_SHELL"


def environments() -> list[Path]:
    """Return the environments in which p4runtime-shell may be installed, in the order of the search."""
    named = os.environ.get(VARIABLE)
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return [Path(named)] if named else [data / "p4reduce" / "p4runtime-shell", Path(f"{sys.prefix}-p4runtime-shell")]


def find_python() -> Path | None:
    """Return the Python of the first environment with p4runtime-shell; None if there is none."""
    for environment in environments():
        python = environment / "bin" / "python"
        if python.exists() and any(environment.glob("lib/python3*/site-packages/p4runtime_sh/__main__.py")):
            return python
    return None


def how_to_install() -> str:
    where = environments()[0]
    return f"python3 -m venv {where} && {where}/bin/pip install {' '.join(PACKAGES)}"


@reaches_controller
def shell(
    switch: Annotated[str, typer.Argument(help="Name of the switch, or HOST:PORT of its P4Runtime server.")] = "",
    device_id: Annotated[int, typer.Option(help="P4Runtime device id.")] = 1,
    *,
    access: Access,
) -> None:
    """Start p4runtime-shell, connected to a switch as a backup client, which can read and not write.

    Without an argument, it connects to the controller's only switch. The command looks for p4runtime-shell in the
    environment that P4REDUCE_SHELL names, in ~/.local/share/p4reduce/p4runtime-shell, and beside this environment.
    """
    python = find_python()
    if python is None:
        fail(f"p4runtime-shell is not installed; install it with\n  {how_to_install()}")
    address = _address(switch, access)
    arguments = ["--grpc-addr", grpc_target(address), "--device-id", str(device_id)]
    # gRPC would connect to the switch through a proxy that these variables name.
    without_proxy = {name: value for name, value in os.environ.items() if name not in PROXY_VARIABLES}
    sys.stdout.flush()  # this process ends at execve, without flushing
    os.execve(python, [str(python), "-m", "p4runtime_sh", *arguments], without_proxy)


def _address(switch: str, access: Access) -> str:
    """Return HOST:PORT of the switch's P4Runtime server."""
    host, _, port = switch.rpartition(":")
    if host and port.isdigit():
        return switch
    known: list[pb.Switch] = list(access.status().switches)
    if not switch and len(known) == 1:
        return known[0].address
    if not switch:
        fail(f"there are {len(known)} switches; name one of them: {', '.join(one.name for one in known)}")
    return known[find((one.name for one in known), "switch", switch)].address
