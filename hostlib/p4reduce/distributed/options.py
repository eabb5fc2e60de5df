# SPDX-License-Identifier: Apache-2.0
"""What the backend is called, and what a process group of it can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:  # what `import torch` brings in stays small
    from p4reduce.local.host import LocalChoice
    from p4reduce.tensors.spec import WireChoice

NAME = "p4reduce"


@dataclass(frozen=True)
class Options:
    """`init_process_group(..., pg_options=Options(...))`: how a group's ranks join, as `p4reduce.Communicator` has it.

    What is None comes from the environment.
    """

    controller: str | None = None
    slots: int = 0
    transport: str | None = None
    interface: str | None = None
    token: str | None = None
    wire: WireChoice | None = None
    local: LocalChoice | None = None
    threads: int | None = None
    _timeout: ClassVar[None] = None  # a DeviceMesh asks for it, and makes the group with it: as without options
