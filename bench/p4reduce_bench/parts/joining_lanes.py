# SPDX-License-Identifier: Apache-2.0
"""Jobs one after the other in each of several lanes, whose ranks are threads; run by `joining`."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.channel import open_channel
from p4reduce.control.client import Session
from p4reduce.errors import JoinError
from p4reduce.join.joining import join_job
from p4reduce.join.options import JoinOptions

SLOTS = 8
CONTROLLER = os.environ["P4REDUCE_CONTROLLER"]
TOKENS: dict[str, str] = json.loads(os.environ["TOKENS"])


def run(name: str, ranks: int, jobs: int) -> tuple[list[float], list[str]]:
    """Seconds of each job, and errors. `name` begins with the tenant's."""
    token = TOKENS[name.partition("-")[0]] or None
    seconds: list[float] = []
    errors: list[str] = []
    with ThreadPoolExecutor(ranks) as pool:
        for job in range(jobs):
            began = time.perf_counter()

            def one(rank: int, job: int = job, began: float = began) -> float:
                options = JoinOptions(CONTROLLER, f"{name}-{job}", rank, ranks, slots=SLOTS, token=token, timeout=60.0)
                place = join_job(options, on_abort=lambda _: None)
                took = time.perf_counter() - began
                place.session.leave()
                place.session.close()
                place.transport.close()
                return took

            try:
                seconds.append(max(pool.map(one, range(ranks))))
            except Exception as error:
                errors.append(str(error))
    return seconds, errors


def flood(token: str) -> None:
    """Asks for jobs that never come to be, and for the status, until it is ended."""
    threading.Thread(target=_ask_status, args=(token,), daemon=True).start()
    number = 0
    while True:
        number += 1
        with Session(CONTROLLER, token=token) as session:
            try:
                session.join(f"flood {number}", 0, 2, slots=1)
            except JoinError:
                continue


def _ask_status(token: str) -> None:
    with open_channel(CONTROLLER, None) as channel:
        stub = rpc.JobsStub(channel)
        while True:
            try:
                stub.Status(pb.StatusRequest(), timeout=10, metadata=(("authorization", f"Bearer {token}"),))
            except grpc.RpcError:
                continue


def main() -> None:
    jobs, ranks, *lanes = sys.argv[1:]
    if int(jobs) == 0:
        flood(TOKENS[lanes[0]])
    with ThreadPoolExecutor(len(lanes)) as pool:
        found = list(pool.map(lambda name: run(name, int(ranks), int(jobs)), lanes))
    said = {"seconds": [one for each, _ in found for one in each], "errors": [one for _, each in found for one in each]}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
