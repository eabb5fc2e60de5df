# SPDX-License-Identifier: Apache-2.0
"""The torch.distributed backend "p4reduce".

`import torch` registers it through the entry point `torch.backends` (PyTorch 2.5 and later), so a program only needs
`torch.distributed.init_process_group("p4reduce")`. All other modules are imported by that call.
"""

from __future__ import annotations

from typing import Any

from p4reduce.distributed.options import NAME, Options

__all__ = ["NAME", "Options", "register"]


class _Plugins(dict[str, Any]):
    """PyTorch's table of external backends, in which this backend can be found by name but is not listed.

    If a backend is listed, PyTorch gives groups such as "cpu:gloo,cuda:gloo" no default backend, so that they have
    neither a name nor sequence numbers.
    """

    def __contains__(self, name: object) -> bool:
        return name == NAME.upper() or super().__contains__(name)

    def __missing__(self, name: str) -> Any:
        import torch.distributed as dist

        if name != NAME.upper():
            raise KeyError(name)
        return dist.Backend._BackendPlugin(_create, True)


class _Name:
    """The attribute `torch.distributed.Backend.P4REDUCE`, which PyTorch reads before it asks for the backend's devices.

    Only this read asks whether CUDA is available, since the question may open the devices. The backend must not name
    CUDA where there is none, since parts of PyTorch would use it.
    """

    def __get__(self, _: object, backend: Any) -> str:
        import torch

        devices = backend.backend_capability[NAME]
        if "cuda" not in devices and torch.cuda.is_available():
            devices.append("cuda")
        return NAME


def register() -> None:
    """Register the backend with torch.distributed. `import torch` calls this; a second call does no harm."""
    import torch.distributed as dist

    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
        del dist.Backend._plugins[NAME.upper()]
        dist.Backend._plugins = _Plugins(dist.Backend._plugins)
        setattr(dist.Backend, NAME.upper(), _Name())


def _create(group: Any, options: Options | None) -> Any:
    """Make a process group. torch.distributed calls this."""
    from p4reduce.distributed.process_group import SwitchGroup

    if options is not None and not isinstance(options, Options):
        raise TypeError(f"pg_options is a {type(options).__name__}: accepted is p4reduce.distributed.Options")
    return SwitchGroup(group, options or Options())
