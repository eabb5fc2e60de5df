# SPDX-License-Identifier: Apache-2.0
"""What Gloo does for the backend in any case, and that it is counted."""

from __future__ import annotations

from typing import Any

from torch._C._distributed_c10d import ProcessGroup

from p4reduce.distributed.traffic import Counting

_Base: Any = ProcessGroup


class ByGloo(_Base):  # type: ignore[misc]
    """torch.distributed finds the group's Gloo for these by itself. Names and arguments are torch.distributed's."""

    _counting: Counting

    def send(self, tensors: Any, *arguments: Any, **options: Any) -> Any:
        """To one rank."""
        self._counting.count("gloo", "send", tensors)
        return super().send(tensors, *arguments, **options)

    def recv(self, tensors: Any, *arguments: Any, **options: Any) -> Any:
        """From one rank."""
        self._counting.count("gloo", "recv", tensors)
        return super().recv(tensors, *arguments, **options)

    def recv_anysource(self, tensors: Any, *arguments: Any, **options: Any) -> Any:
        """From whichever rank sends."""
        self._counting.count("gloo", "recv", tensors)
        return super().recv_anysource(tensors, *arguments, **options)

    def gather(self, outputs: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """To one rank, from all."""
        self._counting.count("gloo", "gather", inputs)
        return super().gather(outputs, inputs, *arguments, **options)

    def scatter(self, outputs: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """From one rank, to all."""
        self._counting.count("gloo", "scatter", outputs)
        return super().scatter(outputs, inputs, *arguments, **options)

    def alltoall(self, outputs: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """From all, to all."""
        self._counting.count("gloo", "all_to_all", inputs)
        return super().alltoall(outputs, inputs, *arguments, **options)

    def alltoall_base(self, output: Any, given: Any, *arguments: Any, **options: Any) -> Any:
        """The same, in one tensor."""
        self._counting.count("gloo", "all_to_all", [given])
        return super().alltoall_base(output, given, *arguments, **options)
