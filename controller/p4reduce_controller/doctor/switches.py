# SPDX-License-Identifier: Apache-2.0
"""Checks of the switches: what the controller reports of them, and their P4Runtime servers as seen from this host."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
from finsy.proto import p4r, p4r_grpc

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.certificates import TlsFiles, channel_credentials
from p4reduce.control.channel import code_of, details, is_closed
from p4reduce.control.diagnostics import of_grpc, of_tls
from p4reduce.control.finding import Finding
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce_controller.switches.availability import NOT_PRIMARY, SwitchState

_TIMEOUT = 3.0


def as_reported(switch: pb.Switch) -> Finding:
    """Return the finding on the state that the controller reports for the switch."""
    subject = f"switch {switch.name}"
    if switch.state in (SwitchState.DRAINING.value, SwitchState.CORDONED.value):
        return Finding(subject, "warning", "it takes no new jobs, because an operator drains or removes it")
    # Its parent, or each switch below it, cannot be used. The findings on those say why.
    if switch.state == SwitchState.UNSCHEDULABLE.value:
        return Finding(subject, "warning", f"it takes no new jobs: {switch.problem}")
    if switch.problem or not switch.connected:
        advice = "check that its process runs, and that its host is up"
        if switch.state == SwitchState.UPLINK_DOWN.value:
            advice = "check the cable of its uplink, and that its port is up on both sides"
        elif NOT_PRIMARY in switch.problem:
            advice = "end the other controller, or start this one with --take-over"
        return Finding(subject, "problem", f"{switch.state}: {switch.problem}", advice)
    spare = ", a spare" if switch.spare else ""
    ipv4 = "; its program knows only IPv4 addresses" if switch.ipv4_only else ""
    return Finding(subject, "ok", f"{switch.state}{spare}, {switch.slots_used} of {switch.slots} slots in use{ipv4}")


def p4runtime(address: str, name: str, device_id: int, cookie: int | None, tls: TlsFiles | None) -> Iterator[Finding]:
    """Check the P4Runtime server from this host. `cookie`: of the program that it should run, if that is known."""
    subject = f"P4Runtime of {name}"
    with open_grpc_channel(address, channel_credentials(tls.current()) if tls is not None else None) as channel:
        stub = p4r_grpc.P4RuntimeStub(channel)
        only = p4r.GetForwardingPipelineConfigRequest.COOKIE_ONLY
        try:
            reply = stub.GetForwardingPipelineConfig(
                p4r.GetForwardingPipelineConfigRequest(device_id=device_id, response_type=only), timeout=_TIMEOUT
            )
        except grpc.RpcError as error:
            yield _failure(error, subject, address, tls is not None)
            return
    yield Finding(subject, "ok", f"{address} answers")
    actual = reply.config.cookie.cookie
    program, has = f"program of {name}", f"the cookie of its program is {actual:#x}"
    if cookie is None:
        yield Finding(program, "skipped", f"{has}; the expected cookie is not known")
    elif actual != cookie:
        found = f"{has}; that of the program on this host is {cookie:#x}"
        advice = (
            "restart the controller, which installs its program; or give the --pipeline and --mtu of the controller"
        )
        yield Finding(program, "problem", found, advice)
    else:
        yield Finding(program, "ok", f"{has}, as on this host")


def _failure(error: grpc.RpcError, subject: str, address: str, tls: bool) -> Finding:
    code, text = code_of(error), details(error)
    if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND):
        return Finding(
            subject, "problem", f"{address} has no program, or another device: {text}", "check that its controller runs"
        )
    if code is grpc.StatusCode.UNAVAILABLE and not tls and is_closed(text):
        advice = (
            "if the switch uses TLS, run this where the certificates are: give --switch-ca, and --switch-cert if it "
            "asks for one"
        )
        return Finding(subject, "skipped", f"{address}: {text}", advice)  # the controller reports whether it is there
    if wrong := of_tls(text, "--switch-ca"):
        return Finding(subject, "problem", f"{address}: {wrong}")
    advice = "check that this host can reach it; if only the controller's host may, run this there"
    return Finding(subject, "warning", f"{address}: {of_grpc(text, code.name if code else '')}", advice)
