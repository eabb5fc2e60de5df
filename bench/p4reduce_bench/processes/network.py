# SPDX-License-Identifier: Apache-2.0
"""A private network for switches that need interfaces; it disappears with the last of its processes."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from p4reduce.errors import P4ReduceError
from p4reduce_controller.p4runtime.builds import DEFAULT_MTU

INSIDE = "P4REDUCE_DEMO_NETWORK"
AGGREGATOR = "10.0.0.254:31314"
"""The address of the switch in the network of `star`."""
CAPABILITIES = {"SYS_ADMIN": 21, "NET_ADMIN": 12, "NET_RAW": 13}
"""The capabilities that namespaces, links and raw sockets need, with their numbers in linux/capability.h."""
_IN_A_CONTAINER = (
    "in a container, start it with --privileged, or with "
    + " ".join(f"--cap-add {name}" for name in CAPABILITIES)
    + " and, if AppArmor is active, --security-opt apparmor=unconfined"
)


def free_port() -> int:
    """Return a TCP port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def enter(module: str = "p4reduce") -> None:
    """Start `python -m module` with this program's arguments again, in a network namespace of its own. Needs root.

    Returns at once inside that namespace. Raises P4ReduceError that names the missing tool or right.
    """
    if os.environ.get(INSIDE):
        return
    if os.geteuid() != 0:
        raise P4ReduceError("this target needs network interfaces, which only root can make: run it as root")
    for tool, package in (("unshare", "util-linux"), ("ip", "iproute2")):
        if shutil.which(tool) is None:
            raise P4ReduceError(f"{tool} is not on PATH: it comes with the package {package}")
    check_rights("unshare", "--net", "true")
    os.environ[INSIDE] = "1"
    os.execvp("unshare", ["unshare", "--net", sys.executable, "-m", module, *sys.argv[1:]])


def check_rights(*probe: str) -> None:
    """Raise P4ReduceError if root may not make networks, as in containers.

    It checks the capabilities of this process, and then that the command `probe`, which needs the rights, succeeds.
    """
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    if missing := [name for name, number in CAPABILITIES.items() if not effective >> number & 1]:
        several = "capabilities" if len(missing) > 1 else "capability"
        raise P4ReduceError(
            f"root may not make network namespaces and links here: it lacks the {several} {', '.join(missing)}; "
            f"{_IN_A_CONTAINER}"
        )
    try:
        run(*probe)
    except P4ReduceError as error:
        raise P4ReduceError(f"root may not make network namespaces here: {error}; {_IN_A_CONTAINER}") from None


def without_ipv6(interface: str) -> None:
    """Keep IPv6's neighbour discovery off an interface, or off all later interfaces ("default").

    If /proc/sys is read-only, as in some containers, a few more packets cross the links.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").write_text("1")


def run(*command: str) -> str:
    """Run a configuration command and return its output. Raises P4ReduceError with its error message.

    The command has a session of its own, so that Ctrl-C reaches only this process, which may be cleaning up.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    if done.returncode != 0:
        raise P4ReduceError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def cable(host_end: str, switch_end: str, mtu: int = DEFAULT_MTU) -> None:
    """Make a veth pair, without IPv6 and its neighbour discovery."""
    run("ip", "link", "add", host_end, "type", "veth", "peer", "name", switch_end)
    for end in (host_end, switch_end):
        without_ipv6(end)
        run("ip", "link", "set", end, "mtu", str(mtu), "up")


def star(workers: int, mtu: int = DEFAULT_MTU) -> None:
    """Set up loopback and a cable for each worker: `worker0`, 10.0.0.1, to switch port `port1`, and so on."""
    run("ip", "link", "set", "lo", "up")
    for worker in range(workers):
        cable(f"worker{worker}", f"port{worker + 1}", mtu)
        run("ip", "address", "add", f"10.0.0.{worker + 1}/24", "dev", f"worker{worker}")
