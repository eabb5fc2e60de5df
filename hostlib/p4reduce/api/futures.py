# SPDX-License-Identifier: Apache-2.0
"""Futures of torch for the results of collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from p4reduce.engine.handle import Handle


def future_of(handle: Handle[Any], settle: Callable[[], Any], outputs: Sequence[torch.Tensor]) -> Any:
    """Return a torch.futures.Future of what `settle` returns or raises when the handle's collective has ended.

    outputs: the tensors of the result. A wait for the future, or a callback on it, makes the streams of their devices
        wait for the work of the stream that is current when `settle` returns, as with PyTorch's own futures.
    """
    devices: Any = list({output.device for output in outputs if output.is_cuda})
    # C++, such as DDP's reducer, sees an exception that a callback raises, but none that Python sets on a future.
    trigger: torch.futures.Future[None] = torch.futures.Future(devices=devices)
    future = trigger.then(lambda _: settle())
    handle.add_done_callback(lambda _: trigger.set_result(None))
    return future
