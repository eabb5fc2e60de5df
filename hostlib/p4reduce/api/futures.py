# SPDX-License-Identifier: Apache-2.0
"""Futures of torch for what a collective gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from p4reduce.engine.handle import Handle


def future_of(handle: Handle[Any], settle: Callable[[], Any], outputs: Sequence[torch.Tensor]) -> Any:
    """Return a torch.futures.Future of what `settle` returns or raises when the handle's collective has ended.

    outputs: the tensors of the result. Who waits for the future, or follows it, has their streams wait for what the
        current one has been given when `settle` returns, as with PyTorch's own.
    """
    devices: Any = list({output.device for output in outputs if output.is_cuda})
    # An exception that Python sets on a future is none for C++, such as DDP's; one that a callback raises is.
    trigger: torch.futures.Future[None] = torch.futures.Future(devices=devices)
    future = trigger.then(lambda _: settle())
    handle.add_done_callback(lambda _: trigger.set_result(None))
    return future
