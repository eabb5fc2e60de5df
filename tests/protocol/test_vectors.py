# SPDX-License-Identifier: Apache-2.0
"""docs/vectors.json, by which another implementation can be checked: this one does what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p4reduce.collectives import moves, reductions
from p4reduce.collectives.plan import Collective, Group
from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.fingerprint import fingerprint, of_round
from p4reduce.protocol.halves import widened
from p4reduce.protocol.job_errors import REASONS
from p4reduce.protocol.numbers import numbers_for
from p4reduce.protocol.packet import abort, pack
from p4reduce.tensors.indices import Code
from p4reduce.tensors.spec import describe
from tests.support.protocol.model_switch import ModelSwitch
from tests.support.protocol.worker_pair import new_worker

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs" / "vectors.json").read_text())


@pytest.mark.parametrize("vector", VECTORS["fingerprints"])
def test_fingerprints(vector: dict[str, Any]) -> None:
    operation = fingerprint(vector["counter"], vector["dtype"], vector["reduce_op"], vector["elements"])
    assert f"{operation:08x}" == vector["operation"]
    assert f"{of_round(operation, vector['active']):08x}" == vector["round"]


@pytest.mark.parametrize("vector", VECTORS["numbers"])
def test_numbers(vector: dict[str, Any]) -> None:
    numbers = numbers_for(np.dtype(np.float32), vector["world_size"])
    values = np.array([[int(word, 16) for word in vector["float32"]]], np.uint32).view(np.float32)
    assert numbers.quantise(values, [vector["exponent"]], [0], 0)[0].tolist() == vector["int32"]
    sums = np.array([vector["sums"]], np.int32)
    result = numbers.dequantise(sums, [vector["exponent"]]).view(np.uint32)
    assert [f"{word:08x}" for word in result[0]] == vector["result"]


@pytest.mark.parametrize("vector", VECTORS["narrow"])
def test_narrow_numbers(vector: dict[str, Any]) -> None:
    """All ranks have the same values; `first` is the index of the first of them."""
    numbers = numbers_for(np.dtype(np.float32), vector["world_size"], vector["wire"])
    values, words, sums, result = (
        np.array([[int(word, 16) for word in vector[name]]], np.uint32)
        for name in ("float32", "words", "sums", "result")
    )
    block, exponents = vector["first"] // values.size, [vector["exponent"]]
    quantised = numbers.quantise(values.view(np.float32), exponents, [block], int(vector["seed"], 16))
    assert quantised.view(np.uint32).tolist() == words.tolist()
    assert (words * np.uint32(vector["world_size"])).tolist() == sums.tolist()
    assert numbers.dequantise(sums.view(np.int32), exponents).view(np.uint32).tolist() == result.tolist()


@pytest.mark.parametrize("vector", VECTORS["codes"])
def test_codes(vector: dict[str, Any]) -> None:
    code, words = Code(vector["count"], vector["bound"]), [int(word, 16) for word in vector["words"]]
    assert code.encode(np.array(vector["numbers"])).view(np.uint32).tolist() == words
    assert code.decode(np.array(words, np.uint32).view(np.int32)).tolist() == vector["numbers"]


@pytest.mark.parametrize("vector", VECTORS["collectives"], ids=lambda vector: vector["call"])
def test_collectives(vector: dict[str, Any]) -> None:
    group, tensor = Group(1, 2), np.zeros(vector["shape"], vector["tensor_dtype"])
    spec = describe(tensor)
    calls: dict[str, Any] = {
        "allreduce sum": lambda: reductions.allreduce(group, tensor, spec, Collective("sum")),
        "allreduce average": lambda: reductions.allreduce(group, tensor, spec, Collective("average")),
        "allreduce max": lambda: reductions.allreduce(group, tensor, spec, Collective("max")),
        "reduce to 0": lambda: reductions.reduce(group, tensor, 0, Collective("sum")),
        "reduce_scatter": lambda: reductions.reduce_scatter(group, tensor, None, Collective("sum")),
        "broadcast from 0": lambda: moves.broadcast(group, tensor, 0),
        "all_gather": lambda: moves.all_gather(group, tensor, None),
        "barrier": lambda: moves.barrier(group),
    }
    operation = calls[vector["call"]]().operation
    assert operation.dtype == vector["dtype"]
    assert operation.reduce_op == vector["reduce_op"]
    assert operation.data.size == vector["elements"]
    assert widened(operation.data).dtype == vector["added_as"]


@pytest.mark.usefixtures("each_worker")
def test_hello() -> None:
    vector = VECTORS["hello"]
    membership = vector["membership"]
    for rank, datagram in (membership["rank"], vector["datagram"]), (vector["other_rank"], vector["other_datagram"]):
        fields = membership | {"rank": rank, "peers": (rank,)}
        assert new_worker(Membership(**fields)).hello(int(vector["nonce"], 16)).hex() == datagram


@pytest.mark.usefixtures("each_worker")
@pytest.mark.parametrize("one", VECTORS["aborts"]["datagrams"], ids=lambda one: one["what"])
def test_aborts(one: dict[str, Any]) -> None:
    secret = int(VECTORS["aborts"]["abort_secret"], 16)
    membership = VECTORS["aborts"]["membership"]
    worker = new_worker(Membership(**membership | {"peers": tuple(membership["peers"]), "abort_secret": secret}))
    worker.receive(bytes.fromhex(one["datagram"]), 0.0)
    assert (worker.failure is not None) == one["taken"]
    if one["taken"]:
        assert worker.failure.rank == one["rank"]
        assert REASONS[one["reason"]] in str(worker.failure)
        fields = {"job": 5, "generation": 9, "seq": secret >> 32, "fingerprint": secret & 0xFFFFFFFF}
        assert pack(abort(one["rank"], one["reason"], lanes=4, **fields)).hex() == one["datagram"]


@pytest.mark.usefixtures("each_worker")
@pytest.mark.parametrize("vector", [VECTORS["operation"], *VECTORS["of_one_round"]], ids=["", "integers", "gathered"])
def test_operation(vector: dict[str, Any]) -> None:
    """Every datagram of two ranks' allreduce, as rank 1 completes each round."""
    dtype = vector.get("dtype", "float32")
    memberships = [Membership(rank=rank, **vector["membership"]) for rank in range(2)]
    switch = ModelSwitch(memberships[0])
    workers = [new_worker(membership) for membership in memberships]
    operations = [
        Operation(np.array([int(word, 16) for word in words], np.uint32).view(dtype)) for words in vector["inputs"]
    ]
    for worker, operation in zip(workers, operations, strict=True):
        worker.submit(operation, 0.0)
    for one in vector["rounds"]:
        answer = None
        for rank, worker in enumerate(workers):
            (payload,) = worker.take_packets()
            assert bytes(payload).hex() == one["data"][rank]
            answer = switch.receive(rank, bytes(payload))
        assert answer == ((0, 1), bytes.fromhex(one["result"]))
        for worker in workers:
            worker.receive(answer[1], 0.001)
    for operation in operations:
        assert operation.done
        assert [f"{word:08x}" for word in operation.data.view(np.uint32)] == vector["output"]
