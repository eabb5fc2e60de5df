# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's profiler shows of the switch's collectives."""

from __future__ import annotations

import contextlib

import torch


def span(name: str) -> contextlib.AbstractContextManager[object]:
    """Return an event `p4reduce:NAME` of the profiler, if one runs; else nothing.

    Of what this thread does: to begin a collective, or to wait for it. Its end comes in another thread, for which a
    profiler that is being stopped does not wait.
    """
    if not torch._C._autograd._profiler_enabled():
        return contextlib.nullcontext()
    return torch.profiler.record_function(f"p4reduce:{name}")
