# SPDX-License-Identifier: Apache-2.0
"""Tables, entries and clients that the tests of the BF Runtime server share."""

from __future__ import annotations

import grpc
import pytest

from tests.support.bfrt import bfruntime_pb2 as bfrt
from tests.support.bfrt import programs
from tests.support.bfrt.plain_client import PlainClient
from tests.support.bfrt.schema import parse
from tests.support.bfrt.server import Server
from tests.support.dataplane.frames import Host

PROFILE = "tofino1-32"
MACS = "pipe.SwitchIngress.forwarding.mac_addresses"
FORWARD, FLOOD, DISCARD = (f"SwitchIngress.forwarding.{name}" for name in ("forward", "flood", "discard"))
ROUTES, ROUTE = "pipe.SwitchIngress.forwarding.ipv4_routes", "SwitchIngress.forwarding.route"
JOBS, ADMIT = "pipe.SwitchIngress.aggregation.admission.jobs", "SwitchIngress.aggregation.admission.admit"
OUTCOMES = "pipe.SwitchIngress.aggregation.outcomes"
HELLOS = "pipe.SwitchIngress.aggregation.hellos"
SEQS = "pipe.SwitchIngress.aggregation.slot_state.seqs"
LOSS_RATES, LOSE = "pipe.SwitchIngress.drop_simulator.loss_rates", "SwitchIngress.drop_simulator.lose"
HERE = Host("02:00:00:00:00:01", "10.0.0.1", 1111)
THERE = Host("02:00:00:00:00:02", "10.0.0.2", 2222)
JOB = {"ingress_port": 4, "source_ip": 1, "source_port": 2, "job": 3, "generation": 4, "worker": 5}
ADMITTED = {"worker_bit": 1, "full_bitmap": 3, "pool_base": 0, "pool_halves": 2, "group": 9}
KINDS = {"MatchAction_Direct", "Counter", "Meter", "Register"}
PACKETS, BYTES = "$COUNTER_SPEC_PKTS", "$COUNTER_SPEC_BYTES"


def connect(server: Server, number: int = 7) -> PlainClient:
    schemas = {**parse(server.device.fixed_schema), **parse(programs.device_config(PROFILE).bfruntime_info)}
    return PlainClient(server.address, schemas, number)


def refusal(error: pytest.ExceptionInfo[grpc.RpcError]) -> str:
    return f"{error.value.code().name} {error.value.details()}"  # type: ignore[attr-defined]


def mac(client: PlainClient, address: int, port: int) -> bfrt.TableEntry:
    return client.entry(MACS, {"mac": address}, {"port": port}, FORWARD)


def port_entry(client: PlainClient, number: int, **fields: object) -> bfrt.TableEntry:
    data = {"$SPEED": "BF_SPEED_100G", "$FEC": "BF_FEC_TYP_NONE", "$PORT_ENABLE": True}
    data |= {f"${name.upper()}": value for name, value in fields.items()}
    return client.entry("$PORT", {"$DEV_PORT": number}, {name: one for name, one in data.items() if one is not None})
