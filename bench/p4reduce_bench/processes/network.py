# SPDX-License-Identifier: Apache-2.0
"""A private network for switches that need interfaces: it is gone when the last of its processes is."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from p4reduce.errors import P4ReduceError
from p4reduce_controller.p4runtime.builds import DEFAULT_MTU

INSIDE = "P4REDUCE_DEMO_NETWORK"
CAPABILITIES = {"SYS_ADMIN": 21, "NET_ADMIN": 12, "NET_RAW": 13}
"""Those that namespaces, links and raw sockets need, with their numbers in linux/capability.h."""
_IN_A_CONTAINER = (
    "in a container, start it with --privileged, or with "
    + " ".join(f"--cap-add {name}" for name in CAPABILITIES)
    + " and, if AppArmor is active, --security-opt apparmor=unconfined"
)


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
    check_rights("unshare", "--net", "true")
    os.environ[INSIDE] = "1"
    os.execvp("unshare", ["unshare", "--net", sys.executable, "-m", "p4reduce", *sys.argv[1:]])


def check_rights(*probe: str) -> None:
    """Raise P4ReduceError where root may not make networks, as in containers: by its capabilities, or because a
    command that needs the rights fails."""
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
    """Keep IPv6's neighbour discovery off an interface, or off those to come ("default"). In containers /proc/sys may
    be read-only, and a kernel may lack IPv6: then a few more packets cross the links, or none."""
    with contextlib.suppress(OSError):
        Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").write_text("1")


def run(*command: str) -> str:
    """Run a configuration command, and return what it printed; raise P4ReduceError with what it said.

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
        without_ipv6(end)
        run("ip", "link", "set", end, "mtu", str(mtu), "up")


def star(workers: int, mtu: int = DEFAULT_MTU) -> None:
    """Loopback, and a cable for each worker: `worker0` to switch port `port1` and so on, from address 10.0.0.1."""
    run("ip", "link", "set", "lo", "up")
    for worker in range(workers):
        cable(f"worker{worker}", f"port{worker + 1}", mtu)
        run("ip", "address", "add", f"10.0.0.{worker + 1}/24", "dev", f"worker{worker}")
