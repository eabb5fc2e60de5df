# SPDX-License-Identifier: Apache-2.0
"""Runs an example of Ray Train on a cluster of several nodes, each of which has room for one worker.

Arguments: how many nodes; the example and its arguments.
"""

from __future__ import annotations

import os
import runpy
import sys

import ray
from ray.cluster_utils import Cluster


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        for _ in range(int(sys.argv[1])):
            cluster.add_node(num_cpus=1)
        os.environ["RAY_ADDRESS"] = cluster.address
        sys.argv = sys.argv[2:]
        sys.path.insert(0, os.path.dirname(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
