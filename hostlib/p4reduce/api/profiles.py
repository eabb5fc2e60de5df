# SPDX-License-Identifier: Apache-2.0
"""Events of the switch's collectives in PyTorch's profiler."""

from __future__ import annotations

import contextlib

import torch


def span(name: str) -> contextlib.AbstractContextManager[object]:
    """Return a context that records an event `p4reduce:NAME`, if a profiler runs; else one that does nothing.

    The event is what this thread does: begin a collective, or wait for it. The collective ends in another thread, for
    which a profiler that is being stopped does not wait.
    """
    if not torch._C._autograd._profiler_enabled():
        return contextlib.nullcontext()
    return torch.profiler.record_function(f"p4reduce:{name}")
