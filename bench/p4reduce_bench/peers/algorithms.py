# SPDX-License-Identifier: Apache-2.0
"""The published sparse allreduces by name: functions of this rank's vector and the tensor's size."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from p4reduce_bench.peers import sparcml
from p4reduce_bench.peers.agsparse import agsparse
from p4reduce_bench.peers.gtopk import gtopk
from p4reduce_bench.peers.oktopk import oktopk
from p4reduce_bench.peers.vectors import Dense, Exchange, Vector
from p4reduce_bench.peers.zen import zen

ALGORITHMS: Mapping[str, Callable[[Exchange, Vector, int], Vector | Dense]] = {
    "agsparse": agsparse,
    "sparcml": sparcml.recursive_doubling,
    "sparcml-split": sparcml.split_allgather,
    "sparcml-dense": sparcml.dense_split_allgather,
    "oktopk": oktopk,
    "zen": zen,
    "gtopk": gtopk,
}
