# SPDX-License-Identifier: Apache-2.0
"""Ranks that have been started again, and whose store may have what those before have left, as torchrun's has."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import BroadcastOptions
from torch.distributed import DistBackendError


def agreed(gloo: Any, timeout: timedelta) -> str:
    """A word that the ranks of a Gloo group have in common, and those of no earlier start: rank 0 makes it up."""
    word = torch.tensor(secrets.randbits(63), device="cpu")
    options = BroadcastOptions()
    options.rootRank, options.timeout = 0, timeout
    gloo.broadcast([word], options).wait()
    return f"{int(word):x}"


@contextlib.contextmanager
def naming_an_earlier_start() -> Iterator[None]:
    """Says what to do where torchrun, which has restarted the ranks, gives them the store that they had before."""
    try:
        yield
    except RuntimeError as error:
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        if restarts == "0" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            raise
        raise DistBackendError(
            f"{error}; torchrun has restarted the ranks (TORCHELASTIC_RESTART_COUNT={restarts}) with the store of "
            "before, where ranks that have ended are still found: start torchrun with "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
        ) from error
