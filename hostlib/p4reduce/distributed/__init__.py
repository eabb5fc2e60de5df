# SPDX-License-Identifier: Apache-2.0
"""The torch.distributed backend "p4reduce".

`import torch` registers it, through the entry point `torch.backends` (PyTorch 2.5 and later), so that a program needs
nothing but `torch.distributed.init_process_group("p4reduce")`. Nothing else is imported before that.
"""

from __future__ import annotations

from typing import Any

from p4reduce.distributed.options import NAME, Options

__all__ = ["NAME", "Options", "register"]


def register() -> None:
    """Makes the backend known to torch.distributed. For `import torch` to call; calling it again does no harm."""
    import torch.distributed as dist

    if dist.is_available():
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(group: Any, options: Options | None) -> Any:
    """For torch.distributed: makes a process group."""
    from p4reduce.distributed.process_group import SwitchGroup

    if options is not None and not isinstance(options, Options):
        raise TypeError(f"pg_options is a {type(options).__name__}: accepted is p4reduce.distributed.Options")
    return SwitchGroup(group, options or Options())
