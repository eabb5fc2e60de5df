# SPDX-License-Identifier: Apache-2.0
"""A private network for switches that need interfaces: it is gone when the last of its processes is."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from p4reduce.errors import P4ReduceError
from p4reduce_controller.switches.builds import DEFAULT_MTU

INSIDE = "P4REDUCE_DEMO_NETWORK"


def enter() -> None:
    """Start this program again in a network namespace of its own, once. Needs root.

    Raises P4ReduceError naming what is missing.
    """
    if os.environ.get(INSIDE):
        return
    if os.geteuid() != 0:
        raise P4ReduceError("this target needs network interfaces, which only root can make: run it as root")
    for tool, package in (("unshare", "util-linux"), ("ip", "iproute2")):
        if shutil.which(tool) is None:
            raise P4ReduceError(f"{tool} is not on PATH: it comes with the package {package}")
    os.environ[INSIDE] = "1"
    os.execvp("unshare", ["unshare", "--net", sys.executable, "-m", "p4reduce", *sys.argv[1:]])


def run(*command: str) -> str:
    """Runs a configuration command, and returns what it printed; raises P4ReduceError with what it said.

    In a session of its own, so that Ctrl-C at the terminal reaches us alone, who may be cleaning up.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    if done.returncode != 0:
        raise P4ReduceError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def cable(host_end: str, switch_end: str, mtu: int = DEFAULT_MTU) -> None:
    """A veth pair, without the chatter of IPv6."""
    run("ip", "link", "add", host_end, "type", "veth", "peer", "name", switch_end)
    for end in (host_end, switch_end):
        Path(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6").write_text("1")
        run("ip", "link", "set", end, "mtu", str(mtu), "up")


def star(workers: int, mtu: int = DEFAULT_MTU) -> None:
    """Loopback, and a cable for each worker: `worker0` to switch port `port1` and so on, from address 10.0.0.1."""
    run("ip", "link", "set", "lo", "up")
    for worker in range(workers):
        cable(f"worker{worker}", f"port{worker + 1}", mtu)
        run("ip", "address", "add", f"10.0.0.{worker + 1}/24", "dev", f"worker{worker}")
