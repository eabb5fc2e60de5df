# SPDX-License-Identifier: Apache-2.0
"""Networks in Mininet: topologies, the experiments that run on them, and faults."""
