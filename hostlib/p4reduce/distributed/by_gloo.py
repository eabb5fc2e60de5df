# SPDX-License-Identifier: Apache-2.0
"""The collectives that always use Gloo, counted like those of the switch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import AllgatherOptions, AllToAllOptions, GatherOptions, ProcessGroup, ScatterOptions

from p4reduce.distributed.arguments import as_list, as_lists, options
from p4reduce.distributed.compiled import called_by_cpp
from p4reduce.distributed.copies import Copies, as_lists_like, flattened
from p4reduce.distributed.support import check_dtypes
from p4reduce.distributed.traffic import Counting

_Base: Any = ProcessGroup


@called_by_cpp
class ByGloo(_Base):  # type: ignore[misc]
    """The part of a process group that always uses Gloo; names and arguments are those of torch.distributed."""

    _counting: Counting
    _gloo: Any

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:
        """Send a tensor to one rank."""
        given = as_list(tensors)
        return self._by_gloo(
            "send", given, [], lambda copies: self._gloo.send(copies.inputs(given), dstRank, tag), on_host=True
        )

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:
        """Receive a tensor from one rank."""
        out = as_list(tensors)
        return self._by_gloo(
            "recv", out, out, lambda copies: self._gloo.recv(copies.outputs(out), srcRank, tag), on_host=True
        )

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receive a tensor from any rank."""
        out = as_list(tensors)
        return self._by_gloo(
            "recv", out, out, lambda copies: self._gloo.recv_anysource(copies.outputs(out), tag), on_host=True
        )

    def gather(
        self,
        output_tensors: Any,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        input_tensor: Any = None,
        root: Any = None,
    ) -> Any:
        """Gather the tensors of all ranks at one rank."""
        opts = options(GatherOptions, opts, rootRank=root, timeout=timeout)
        outputs, inputs = as_lists(output_tensors, input_tensors if input_tensor is None else input_tensor)
        flat = flattened(outputs)

        def begin(copies: Copies) -> Any:
            staged = copies.outputs(flat, inputs, raises_version=True)
            return self._gloo.gather(as_lists_like(outputs, staged), copies.inputs(inputs), opts)

        return self._by_gloo("gather", inputs, flat, begin)

    def scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        output_tensor: Any = None,
        root: Any = None,
    ) -> Any:
        """Scatter tensors from one rank to all ranks."""
        opts = options(ScatterOptions, opts, rootRank=root, timeout=timeout)
        inputs, outputs = as_lists(input_tensors, output_tensors if output_tensor is None else output_tensor)
        flat = flattened(inputs)

        def begin(copies: Copies) -> Any:
            out = copies.outputs(outputs, flat)
            return self._gloo.scatter(out, as_lists_like(inputs, copies.inputs(flat)), opts)

        return self._by_gloo("scatter", outputs, outputs, begin)

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Any:
        """Gather several tensors of each rank, each of them into its own list, on every rank."""
        opts, (outputs, inputs) = options(AllgatherOptions, opts, timeout=None), as_lists(output_lists, input_list)
        flat = flattened(outputs)

        def begin(copies: Copies) -> Any:
            staged = copies.outputs(flat, inputs, raises_version=True)
            return self._gloo.allgather_coalesced(as_lists_like(outputs, staged), copies.inputs(inputs), opts)

        return self._by_gloo("all_gather_coalesced", inputs, flat, begin, on_host=True)

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Send a tensor from every rank to every rank."""
        opts, outputs, inputs = options(AllToAllOptions, opts, timeout=None), list(output_tensors), list(input_tensors)

        def begin(copies: Copies) -> Any:
            out = copies.outputs(outputs, inputs, raises_version=True)
            return self._gloo.alltoall(out, copies.inputs(inputs), opts)

        return self._by_gloo("all_to_all", inputs, outputs, begin)

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any,
        input_split_sizes: Any,
        opts: Any = None,
        *,
        timeout: Any = None,
    ) -> Any:
        """Send a part of one tensor from every rank to every rank. Gloo refuses a tensor that is not contiguous."""
        opts = options(AllToAllOptions, opts, timeout=timeout)

        def begin(copies: Copies) -> Any:
            out, given = output, input
            if out.is_contiguous() and given.is_contiguous():
                (out,), (given,) = copies.outputs([output], [input]), copies.inputs([input])
            return self._gloo.alltoall_base(out, given, output_split_sizes, input_split_sizes, opts)

        return self._by_gloo("all_to_all", [input], [output], begin)

    alltoall_base = all_to_all_single

    def _by_gloo(
        self, name: str, counted: Any, outputs: Any, begin: Callable[[Copies], Any], *, on_host: bool = False
    ) -> Any:
        """Begin a call by Gloo.

        counted: this rank's tensors in it, for the statistics.
        on_host: whether Gloo supports this call for tensors in the host's memory only.
        """
        self._counting.count("gloo", name, counted)
        check_dtypes(name, counted)
        copies = Copies(on_host=on_host)
        return copies.finish(begin(copies), outputs)
