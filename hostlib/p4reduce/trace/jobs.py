# SPDX-License-Identifier: Apache-2.0
"""What the controller calls a job whose packets are recorded."""

from __future__ import annotations

import grpc

from p4reduce import settings
from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import jobs_pb2_grpc as rpc
from p4reduce.control.channel import explain, open_channel
from p4reduce.errors import P4ReduceError

_TIMEOUT_S = 10.0


def number_of(controller: str, job: str) -> int:
    """The number that the job has in packets. Raises P4ReduceError where it does not run."""
    token, tls = settings.token(None), settings.tls(None)
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    try:
        with open_channel(controller, tls) as channel:
            reply = rpc.JobsStub(channel).Status(pb.StatusRequest(), timeout=_TIMEOUT_S, metadata=metadata)
    except grpc.RpcError as error:
        raise P4ReduceError(explain(error, controller, tls)) from error
    numbers = {_called(one): int(one.number) for one in reply.jobs}
    if job not in numbers:
        there = f"there run {', '.join(sorted(numbers))}" if numbers else "none runs there"
        raise P4ReduceError(f"job {job!r} is not known at the controller {controller}: {there}")
    return numbers[job]


def _called(job: pb.Job) -> str:
    """As commands name it: with its tenant, where the controller has users."""
    return f"{job.tenant}/{job.name}" if job.tenant else str(job.name)
