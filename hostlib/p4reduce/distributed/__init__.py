# SPDX-License-Identifier: Apache-2.0
"""The torch.distributed backend "p4reduce".

`import torch` registers it, through the entry point `torch.backends` (PyTorch 2.5 and later), so that a program needs
nothing but `torch.distributed.init_process_group("p4reduce")`. Nothing else is imported before that.
"""

from __future__ import annotations

from typing import Any

from p4reduce.distributed.options import NAME, Options

__all__ = ["NAME", "Options", "register"]


class _Plugins(dict[str, Any]):
    """PyTorch's backends that are not its own, with this one, which is found by its name but not listed.

    While there is one in the list, PyTorch gives groups such as "cpu:gloo,cuda:gloo" no default backend, so that they
    have neither a name nor sequence numbers.
    """

    def __contains__(self, name: object) -> bool:
        return name == NAME.upper() or super().__contains__(name)

    def __missing__(self, name: str) -> Any:
        import torch.distributed as dist

        if name != NAME.upper():
            raise KeyError(name)
        return dist.Backend._BackendPlugin(_create, True)


class _Name:
    """`torch.distributed.Backend.P4REDUCE`, which PyTorch looks up before it asks which devices the backend takes.

    CUDA is not asked for before, as that may open the devices. Where there is none, some of PyTorch would use it.
    """

    def __get__(self, _: object, backend: Any) -> str:
        import torch

        devices = backend.backend_capability[NAME]
        if "cuda" not in devices and torch.cuda.is_available():
            devices.append("cuda")
        return NAME


def register() -> None:
    """Make the backend known to torch.distributed. For `import torch` to call; calling it again does no harm."""
    import torch.distributed as dist

    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
        del dist.Backend._plugins[NAME.upper()]
        dist.Backend._plugins = _Plugins(dist.Backend._plugins)
        setattr(dist.Backend, NAME.upper(), _Name())


def _create(group: Any, options: Options | None) -> Any:
    """For torch.distributed: makes a process group."""
    from p4reduce.distributed.process_group import SwitchGroup

    if options is not None and not isinstance(options, Options):
        raise TypeError(f"pg_options is a {type(options).__name__}: accepted is p4reduce.distributed.Options")
    return SwitchGroup(group, options or Options())
