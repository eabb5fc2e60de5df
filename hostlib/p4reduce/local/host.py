# SPDX-License-Identifier: Apache-2.0
"""By what ranks find that they are on one host."""

from __future__ import annotations

import errno
import hashlib
import logging
import mmap
import os
import resource
from pathlib import Path
from typing import Literal, TypeAlias, get_args

LocalChoice: TypeAlias = Literal["auto", "off"]
LOCAL_CHOICES: tuple[LocalChoice, ...] = get_args(LocalChoice)

log = logging.getLogger(__name__)

COPIES = "P4REDUCE_LOCAL_COPIES"
"""Environment variable: 1 has ranks copy their values for each other, where they could read each other's memory."""

_LAYOUT = 8  # of what they share: LAYOUT in hostlib/csrc/shm/segment.h
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NAMESPACES = ("ipc", "net", "pid", "user")


_MOST_BYTES = 256 << 20
"""More than ranks of one host share for each of them, most of which is never used (csrc/shm)."""
_FILES, _MORE_FILES = 2, 32
"""Descriptors that a rank needs at most for each of the others, and besides, until it has joined."""


def _check_limits(ranks: int) -> None:
    """Raise OSError where the limits of this process, on the size of files, addresses or open files, do not let so
    many ranks share memory."""
    size = ranks * _MOST_BYTES
    file = os.memfd_create("p4reduce")
    try:
        os.ftruncate(file, size)
        mmap.mmap(file, size).close()
    finally:
        os.close(file)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files = len(os.listdir("/proc/self/fd"))
    needed = ranks * _FILES + _MORE_FILES
    if limit != resource.RLIM_INFINITY and limit - open_files < needed:
        raise OSError(errno.EMFILE, f"{open_files} files are open of {limit} that may be, and {needed} more are needed")


def copies_wanted() -> bool:
    """What the variable COPIES says, by default not. Raises ValueError."""
    written = os.environ.get(COPIES) or "0"
    if written not in ("0", "1"):
        raise ValueError(f"{COPIES}={written!r}: accepted are 0, 1")
    return written == "1"


def digest(ranks: int = 1) -> str:
    """What processes have in common that can share memory, and no others: those of one user and one version of this
    library in the same run of a kernel, in the same namespaces of IPC, networks, processes and users. Hosts that are
    emulated differ in their networks alone. "" where this process cannot share any, or not with so many ranks.
    """
    from p4reduce.fastpath import structures  # not where torch only looks for backends

    try:
        _check_limits(ranks)
        boot = Path(_BOOT_ID).read_text().strip()
        names = [f"/proc/self/ns/{name}" for name in _NAMESPACES]
        namespaces = [os.readlink(name) for name in names if os.path.lexists(name)]  # a kernel may be built without
    except OSError as error:
        log.info("this rank shares no memory with others of its host: %s", error)
        return ""
    parts = (boot, *namespaces, os.geteuid(), structures.ABI, _LAYOUT)
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()
