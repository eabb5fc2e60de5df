# SPDX-License-Identifier: Apache-2.0
"""A shell as a reader has it: commands that serve are each as in a terminal of their own, and all is gone at the end.

Network, processes and mounts are in namespaces of their own, so ports and addresses are as they are documented.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.certificates import self_signed
from tests.support.document_blocks import ROOT

LONGEST_S = 240

# The shim leaves servers in the background once they are ready, and interrupts commands that run until Ctrl-C.
# `doctor` may report problems.
SHIM = """#!/bin/bash
case $1 in
switch | controller)
    said=$(mktemp said.XXXXXX)
    setsid {real} "$@" >"$said" 2>&1 </dev/null &
    until grep -q ^ready "$said"; do
        kill -0 $! 2>/dev/null || {{ cat "$said" >&2; exit 1; }}
        sleep 0.05
    done
    ;;
top) timeout --signal INT 3 {real} "$@" || [ $? = 124 ] ;;
doctor) {real} "$@" || [ $? = 1 ] ;;
shell) echo "p4runtime-shell has an environment of its own" ;;
*) exec {real} "$@" ;;
esac
"""

FOREVER = """
import time
import numpy as np
from p4reduce import Communicator, JobAborted
with Communicator(job="train") as communicator:
    try:
        while True:
            communicator.allreduce(np.ones(1000, np.float32))
            time.sleep(0.05)
    except JobAborted:
        pass
"""

SPINE = """
[[switches]]
name = "spine"
switch = "127.0.0.1:9559"
address = ["10.0.255.1"]
ports = [1]
"""

RECORDED = """
import numpy as np, pathlib
pathlib.Path("gradients").mkdir()
for step, rank in np.ndindex(4, 2):
    weight = np.eye(64, k=step + rank, dtype=np.float32)
    np.savez(f"gradients/gradients-{step}-rank{rank}.npz", weight=weight)
"""

WAIT = "for job in $(jobs -p); do wait $job; done\n"


def run(folder: Path, script: str, addresses: Iterable[str] = (), name: str = "", needs: str = "") -> str:
    """Run a script by bash, and return its output. Skips the test without root or one of the tools in `needs`.

    The script fails as soon as one of its commands does.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root, for namespaces of its own")
    for tool in ("unshare", "ip", *needs.split()):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    start = ["set -eo pipefail", "mkdir -p /run/netns", "mount -t tmpfs none /run/netns", "ip link set lo up"]
    start += [f"ip address add {address}/32 dev lo" for address in addresses]
    if name:
        (folder / "hosts").write_text(f"127.0.0.1 localhost {name}\n")
        start += ["mount --bind hosts /etc/hosts"]
    (folder / "script").write_text("\n".join([*start, script, WAIT]))
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "script"]
    path = os.pathsep.join([_shims(folder), sysconfig.get_path("scripts"), os.environ["PATH"]])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("P4REDUCE_")}
    try:
        done = subprocess.run(
            command, cwd=folder, env={**environment, "PATH": path}, capture_output=True, text=True, timeout=LONGEST_S
        )
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"{script}\n has not ended: {late.stdout!r} {late.stderr!r}") from None
    said = "\n".join(file.read_text() for file in sorted(folder.glob("said.*")))
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}\n{said}"
    return done.stdout


def furnish(folder: Path) -> None:
    """Write the files that the documents' blocks take as given."""
    (folder / "example.py").write_text((ROOT / "examples" / "sum.py").read_text())
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "forever.py").write_text(FOREVER)
    (folder / "spine.toml").write_text(SPINE)
    (folder / "recorded.py").write_text(RECORDED)
    (folder / "token").write_text("secret\n")
    (folder / "token").chmod(0o600)
    shutil.copy(ROOT / "hostlib" / "csrc" / "examples" / "allreduce.c", folder)


def certify(folder: Path, name: str) -> None:
    """Write certificates of the controller, of the switch, and of their authorities, with the names in the blocks."""
    certificate, key = self_signed(folder, name or "localhost")
    for copy in ("cert.pem", "switch.pem", "switches.pem", "controller.pem", "controllers.pem"):
        shutil.copy(certificate, folder / copy)
    for copy in ("key.pem", "switch.key", "controller.key"):
        shutil.copy(key, folder / copy)


def _shims(folder: Path) -> str:
    shims = folder / "shims"
    shims.mkdir(exist_ok=True)
    (shims / "p4reduce").write_text(SHIM.format(real=f"{shlex.quote(sys.executable)} -m p4reduce"))
    (shims / "p4reduce").chmod(0o755)
    return str(shims)
