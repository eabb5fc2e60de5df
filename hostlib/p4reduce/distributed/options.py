# SPDX-License-Identifier: Apache-2.0
"""The backend's name, and the options of its process groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:  # keeps `import torch` small, which imports this module
    from p4reduce.local.host import LocalChoice
    from p4reduce.tensors.spec import WireChoice

NAME = "p4reduce"


@dataclass(frozen=True)
class Options:
    """The options of a process group, as in `init_process_group(..., pg_options=Options(...))`.

    They are those of `p4reduce.Communicator`. An option that is None comes from the environment.
    """

    controller: str | None = None
    slots: int = 0
    transport: str | None = None
    interface: str | None = None
    token: str | None = None
    wire: WireChoice | None = None
    local: LocalChoice | None = None
    threads: int | None = None
    _timeout: ClassVar[None] = None  # a DeviceMesh reads this and passes it on; None means the default
