# SPDX-License-Identifier: Apache-2.0
"""The digest by which ranks find out that they are on one host."""

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
"""Environment variable: 1 makes ranks copy their values for each other, even if they could read each other's memory."""

_LAYOUT = 9  # of the shared memory: LAYOUT in hostlib/csrc/shm/segment.h
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NAMESPACES = ("ipc", "net", "pid", "user")


_MOST_BYTES = 256 << 20
"""Upper bound of the address space that ranks of one host share for each rank; most of it is never used (csrc/shm)."""
_FILES, _MORE_FILES = 2, 32
"""Most file descriptors that a rank needs for each other rank, and besides these, until it has joined."""


def _check_limits(ranks: int) -> None:
    """Raise OSError if the limits of this process do not let this number of ranks share memory.

    The truncation fails at the limit on file sizes (RLIMIT_FSIZE), the mapping at the one on addresses (RLIMIT_AS);
    neither allocates memory. The number of files is compared with the limit on open files (RLIMIT_NOFILE).
    """
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
    """Return whether the variable COPIES asks for copies; by default not. Raises ValueError."""
    written = os.environ.get(COPIES) or "0"
    if written not in ("0", "1"):
        raise ValueError(f"{COPIES}={written!r}: accepted are 0, 1")
    return written == "1"


def digest(ranks: int = 1) -> str:
    """Return a digest that is equal only for processes that can share memory, or "" if `ranks` ranks cannot.

    Such processes have the same user, version of this library and boot of the kernel, and the same IPC, network, PID
    and user namespaces. Emulated hosts differ in their network namespaces alone.
    """
    from p4reduce.fastpath import structures  # here, so that torch's search for backends does not import it

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
