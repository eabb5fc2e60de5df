# SPDX-License-Identifier: Apache-2.0
"""Sum a sparse tensor over all ranks. Start it once for each rank, with RANK and WORLD_SIZE set."""

import numpy as np

from p4reduce import Communicator

with Communicator(job="sum") as communicator:
    gradient = np.zeros(1_000_000, np.float32)
    gradient[640 * communicator.rank :][:64] = 1  # one non-zero block of 64 values; each rank has a different one
    communicator.allreduce(gradient)  # in place
    stats = communicator.stats()
    print(f"rank {communicator.rank}: sum {gradient.sum():.0f}, packets sent {stats.packets_sent}", flush=True)
