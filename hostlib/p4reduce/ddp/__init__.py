# SPDX-License-Identifier: Apache-2.0
"""Communication hooks for `torch.nn.parallel.DistributedDataParallel`."""

from p4reduce.ddp.hooks import AllreduceState, allreduce_hook

__all__ = ["AllreduceState", "allreduce_hook"]
