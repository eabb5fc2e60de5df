# SPDX-License-Identifier: Apache-2.0
"""Communication hooks for `torch.nn.parallel.DistributedDataParallel`.

`fp16_wrapper`, `bf16_wrapper` and `noop_hook` are those of PyTorch, which work with the hooks here.
"""

from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper as fp16_wrapper

from p4reduce.ddp.hierarchical import HierarchicalState
from p4reduce.ddp.hooks import (
    allreduce_hook,
    bf16_wrapper,
    block_randomk_hook,
    block_threshold_hook,
    block_topk_hook,
    element_topk_hook,
    hierarchical_hook,
    int8_hook,
)
from p4reduce.ddp.recording import Recorder
from p4reduce.ddp.sparsifiers import (
    BlockRandomKState,
    BlockThresholdState,
    BlockTopKState,
    ElementTopKState,
)
from p4reduce.ddp.states import AllreduceState, Int8State, SparsifierStats

__all__ = [
    "AllreduceState",
    "BlockRandomKState",
    "BlockThresholdState",
    "BlockTopKState",
    "ElementTopKState",
    "HierarchicalState",
    "Int8State",
    "Recorder",
    "SparsifierStats",
    "allreduce_hook",
    "bf16_wrapper",
    "block_randomk_hook",
    "block_threshold_hook",
    "block_topk_hook",
    "element_topk_hook",
    "fp16_wrapper",
    "hierarchical_hook",
    "int8_hook",
    "noop_hook",
]
