# SPDX-License-Identifier: Apache-2.0
"""Packages that are imported when a command or a model needs them. Those of models are the extra `gradients`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from p4reduce.errors import P4ReduceError

EXTRA = "p4reduce-bench[gradients]"

_declared: list[Any] = []  # libraries: the operators that they declare disappear with them


def need(name: str) -> None:
    """Raise ModuleNotFoundError if a package is missing that processes of the command import."""
    if find_spec(name) is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def why_not(name: str) -> str | None:
    """Return why a package cannot be imported; None if it is installed."""
    return None if find_spec(name) else f"the package {name} is not installed: pip install '{EXTRA}'"


def package(name: str) -> Any:
    """Return a package. Raises P4ReduceError that names the extra, or the reason why the import failed."""
    missing = why_not(name)
    if missing:
        raise P4ReduceError(missing)
    try:
        if find_spec("torchvision"):  # transformers imports it, too
            _torchvision()
        return import_module(name)
    except (ImportError, RuntimeError, OSError) as error:
        raise P4ReduceError(f"the package {name} cannot be imported: {str(error).splitlines()[0]}") from None


def _torchvision() -> None:
    """Import torchvision, also if its C++ operators do not load.

    PyPI's builds are linked with CUDA, which a CPU build of torch lacks. No model here needs the operators, but the
    import of torchvision fails unless two of them are declared.
    """
    import torch

    try:
        import_module("torchvision")
    except RuntimeError:
        if not _declared:
            library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
            for operator in ("nms", "qnms"):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _declared.append(library)
        import_module("torchvision")
