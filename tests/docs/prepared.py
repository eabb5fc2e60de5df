# SPDX-License-Identifier: Apache-2.0
"""Runs blocks of Python in what they take as given: a rank, a model under DDP, gradients. Each has all of it anew.

Standard input: a JSON list of [name, what runs before, block]. Standard output: a line for each that has ended well.
"""

from __future__ import annotations

import json
import sys
import traceback

import numpy as np
import torch
import torch.distributed as dist
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

import p4reduce
from p4reduce.ddp import BlockTopKState


def capture(name: str) -> None:
    """Write a capture file with one packet, a HELLO."""
    payload = bytes.fromhex("18000003000500090000000000000123456789abcdef" + "ff" * 12)
    wrpcap(name, [Ether() / IP(src="10.0.0.1", dst="10.0.0.254") / UDP(sport=1234, dport=31314) / payload])


def run(name: str, before: str, text: str) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = torch.nn.Linear(64, 64)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    try:
        with p4reduce.Communicator(job="prepared") as communicator:
            given = {
                "p4reduce": p4reduce, "np": np, "torch": torch, "dist": dist, "prepared": sys.modules[__name__],
                "communicator": communicator, "model": model, "ddp": ddp, "gradient": np.ones(1000, np.float32),
                "step": 1, "BlockTopKState": BlockTopKState, "Communicator": p4reduce.Communicator,
            }  # fmt: skip
            exec(compile(before, f"before {name}", "exec"), given)
            exec(compile(text, name, "exec"), given)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    failed = []
    for name, before, text in json.load(sys.stdin):
        try:
            run(name, before, text)
            print("done", name, flush=True)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    sys.exit(f"{', '.join(failed)} failed" if failed else 0)
