# SPDX-License-Identifier: Apache-2.0
"""By what ranks find that they are on one host."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Literal, TypeAlias, get_args

LocalChoice: TypeAlias = Literal["auto", "off"]
LOCAL_CHOICES: tuple[LocalChoice, ...] = get_args(LocalChoice)

COPIES = "P4REDUCE_LOCAL_COPIES"
"""Environment variable: 1 has ranks copy their values for each other, where they could read each other's memory."""

_LAYOUTS = (5, 6)  # of what they share: LAYOUT in local_meeting.c, HOST_LAYOUT in host_memory.h
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NAMESPACES = ("ipc", "net", "pid", "user")


def copies_wanted() -> bool:
    """What the variable COPIES says, by default not. Raises ValueError."""
    written = os.environ.get(COPIES) or "0"
    if written not in ("0", "1"):
        raise ValueError(f"{COPIES}={written!r}: accepted are 0, 1")
    return written == "1"


def digest() -> str:
    """What processes have in common that can share memory, and no others: those of one user and one version of this
    library in the same run of a kernel, in the same namespaces of IPC, networks, processes and users. Hosts that are
    emulated differ in their networks alone. "" where this process cannot share any.
    """
    from p4reduce.fastpath import structures  # not where torch only looks for backends

    try:
        os.close(os.memfd_create("p4reduce"))
        boot = Path(_BOOT_ID).read_text().strip()
        names = [f"/proc/self/ns/{name}" for name in _NAMESPACES]
        namespaces = [os.readlink(name) for name in names if os.path.lexists(name)]  # a kernel may be built without
    except OSError:
        return ""
    parts = (boot, *namespaces, os.geteuid(), structures.ABI, *_LAYOUTS)
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()
