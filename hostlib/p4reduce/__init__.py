# SPDX-License-Identifier: Apache-2.0
"""p4reduce: allreduce of sparse tensors, added up by a programmable switch.

import numpy as np
from p4reduce import Communicator

with Communicator(job="example", rank=0, world_size=2) as communicator:
    communicator.allreduce(np.ones(1000, np.float32))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4reduce.errors import (
    CollectiveTimeout,
    JobAborted,
    JoinError,
    MismatchError,
    OperationRefused,
    P4ReduceError,
    SlotsExhausted,
    UnsupportedDtype,
)

if TYPE_CHECKING:
    from p4reduce.api.communicator import Communicator
    from p4reduce.api.stats import Stats
    from p4reduce.backends import Backend, backend
    from p4reduce.collectives.sites import CallSite
    from p4reduce.engine.handle import Handle
    from p4reduce.local.memory import shared_empty

    __version__: str

__all__ = [
    "Backend",
    "CallSite",
    "CollectiveTimeout",
    "Communicator",
    "Handle",
    "JobAborted",
    "JoinError",
    "MismatchError",
    "OperationRefused",
    "P4ReduceError",
    "SlotsExhausted",
    "Stats",
    "UnsupportedDtype",
    "__version__",
    "backend",
    "shared_empty",
]

# These are imported when first used, because they import gRPC, which the protocol and most commands do not need.
_LAZY = {
    "Backend": "p4reduce.backends",
    "backend": "p4reduce.backends",
    "CallSite": "p4reduce.collectives.sites",
    "Communicator": "p4reduce.api.communicator",
    "Handle": "p4reduce.engine.handle",
    "shared_empty": "p4reduce.local.memory",
    "Stats": "p4reduce.api.stats",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("p4reduce")
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
