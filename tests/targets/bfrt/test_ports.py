# SPDX-License-Identifier: Apache-2.0
"""Ports of a Tofino: what --port says, and what of it reaches the switch."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import grpc
import pytest

from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.bfrt import ports as ports_module
from p4reduce_targets.bfrt.client import BfrtError, BfrtLost, ReadRefused, UpdateError
from p4reduce_targets.bfrt.ports import PortRequest, TofinoPort, open_ports
from p4reduce_targets.bfrt.schema import Schema
from p4reduce_targets.ports import PortError
from tests.support.waiting import wait_until
from tests.targets.bfrt import schemas
from tests.targets.bfrt.noting_client import NotingClient

SCHEMA = Schema.parse(schemas.PORTS)
PORT, NAMES, RECIRCULATION, DEVICE = (
    SCHEMA.table(name).id for name in ("$PORT", "$PORT_STR_INFO", "tf1.pktgen.port_cfg", "tf1.dev.device_configuration")
)
REFUSED = UpdateError(grpc.StatusCode.INVALID_ARGUMENT, "Table Add failed Invalid arguments")


class PortsClient(NotingClient):
    """A client of a switch with two pipes, whose ports 1/0 and 2/0 are 128 and 132."""

    def __init__(self) -> None:
        super().__init__()
        self.device: dict[int, list[int]] = {2: [2], 6: [192], 7: [64, 65]}
        self.names = {b"1/0": 128, b"2/0": 132, b"33/0": 64, b"5/0": 0}
        self.ports: dict[int, dict[int, str | bool]] = {}
        self.changes: dict[int, str | bool] = {}  # fields that the switch sets otherwise than it is told
        self.up: set[int] = set()

    def write(self, updates: Sequence[pb.Update], timeout_s: float | None = None) -> list[UpdateError | None]:
        results = super().write(updates, timeout_s)
        for update in updates:
            entry = update.entity.table_entry
            if entry.table_id == PORT and update.type == pb.Update.DELETE:
                del self.ports[number_of(entry)]
            elif entry.table_id == PORT:
                fields = {one.field_id: getattr(one, one.WhichOneof("value") or "") for one in entry.data.fields}
                self.ports[number_of(entry)] = fields | self.changes
        return results

    def read(self, entries: Sequence[pb.TableEntry]) -> list[pb.TableEntry]:
        found = [one for entry in entries for one in self._read(entry)]
        errors = [one if isinstance(one, UpdateError) else None for one in found]
        if any(errors):
            raise ReadRefused("refused", errors)
        return [one for one in found if isinstance(one, pb.TableEntry)]

    def _read(self, entry: pb.TableEntry) -> list[pb.TableEntry | UpdateError]:
        if self.lost is not None:
            raise BfrtLost(self.lost)
        wanted = [field.field_id for field in entry.data.fields]
        if entry.table_id == DEVICE:
            assert entry.is_default_entry
            (field,) = wanted
            if field not in self.device:
                return [REFUSED]
            values = self.device[field]
            data = pb.DataField(field_id=field)
            if field == 7:
                data.int_arr_val.val.extend(values)
            else:
                data.stream = values[0].to_bytes(4, "big")
            return [pb.TableEntry(table_id=DEVICE, data=pb.TableData(fields=[data]))]
        if entry.table_id == NAMES:
            name = entry.key.fields[0].exact.value
            if name not in self.names:
                return [REFUSED]
            number = pb.DataField(field_id=1, stream=self.names[name].to_bytes(4, "big"))
            return [pb.TableEntry(table_id=NAMES, data=pb.TableData(fields=[number]))]
        assert entry.table_id == PORT
        numbers = [number_of(entry)] if entry.HasField("key") else sorted(self.ports)
        return [self._port(number, wanted) for number in numbers]

    def _port(self, number: int, wanted: Sequence[int]) -> pb.TableEntry | UpdateError:
        if number not in self.ports:
            return REFUSED
        fields = self.ports[number] | {25: number in self.up}
        data = [
            pb.DataField(field_id=one, bool_val=value)
            if isinstance(value := fields[one], bool)
            else pb.DataField(field_id=one, str_val=value)
            for one in wanted
        ]
        key = pb.TableKey(fields=[pb.KeyField(exact=pb.KeyField.Exact(value=number.to_bytes(4, "big")))])
        return pb.TableEntry(table_id=PORT, key=key, data=pb.TableData(fields=data))


def number_of(entry: pb.TableEntry) -> int:
    return int.from_bytes(entry.key.fields[0].exact.value, "big")


@pytest.fixture
def client() -> PortsClient:
    client = PortsClient()
    client._lost = None
    yield client
    client._lost = "the test has ended"


def opened(
    client: PortsClient, *texts: str, cpu_port: int = 192, recirculation_port: int | None = None
) -> list[TofinoPort]:
    annotations = [f"@cpu_port({cpu_port})"]
    annotations += [f"@recirculation_port({recirculation_port})"] if recirculation_port is not None else []
    program = pb.ForwardingPipelineConfig(bfruntime_info=schemas.outcomes(*annotations))
    return open_ports(client, SCHEMA, program, [PortRequest.parse(text) for text in texts])


@pytest.mark.parametrize(
    ("text", "request_", "canonical"),
    [
        ("1/0:100G:rs", PortRequest("1/0", "100G", "rs"), "1/0:100G:rs"),
        ("128:25g", PortRequest("128", "25G"), "128:25G:none"),
        ("33/3:400G:RS:an", PortRequest("33/3", "400G", "rs", "an"), "33/3:400G:rs:an"),
        ("1/0:10G:none:no-an", PortRequest("1/0", "10G", "none", "no-an"), "1/0:10G:none:no-an"),
    ],
)
def test_reads_requests(text: str, request_: PortRequest, canonical: str) -> None:
    assert PortRequest.parse(text) == request_
    assert str(request_) == canonical


@pytest.mark.parametrize(
    "text",
    ["", "1/0", "1/0:", ":100G", "1/0:100", "1/0:1T", "1/0:100G:", "1/0:100G:crc", "1/0:100G:rs:on", "1:100G:rs:an:x"],
)
def test_refuses_other_texts(text: str) -> None:
    with pytest.raises(PortError, match=r"accepted are NAME:SPEED\[:FEC"):
        PortRequest.parse(text)


def test_adds_and_enables_ports(client: PortsClient) -> None:
    client.up = {132}
    found = opened(client, "1/0:100G:rs", "132:25G:none:an")
    assert [(port.number, port.name) for port in found] == [(128, "1/0"), (132, "132")]
    assert client.ports == {
        128: {1: "BF_SPEED_100G", 2: "BF_FEC_TYP_REED_SOLOMON", 4: True, 5: "PM_AN_DEFAULT"},
        132: {1: "BF_SPEED_25G", 2: "BF_FEC_TYP_NONE", 4: True, 5: "PM_AN_FORCE_ENABLE"},
    }
    assert [port.interface.state() for port in found] == ["DOWN", "UP"]


def test_leaves_ports_that_are_as_they_should_be(client: PortsClient) -> None:
    """Adding one again would break its link. The server has two names for a FEC."""
    opened(client, "1/0:100G:rs", "2/0:25G:fc")
    client.ports[128][2], client.ports[132][2] = "BF_FEC_TYP_RS", "BF_FEC_TYP_FC"
    client.requests.clear()
    opened(client, "1/0:100G:rs", "2/0:25G:fc")
    assert not client.requests


def test_adds_a_port_with_other_settings_anew(client: PortsClient) -> None:
    """The server would keep speed and FEC of one that is there."""
    opened(client, "1/0:100G:rs", "2/0:25G:fc")
    client.requests.clear()
    opened(client, "1/0:40G", "2/0:25G:fc")
    ((delete, insert),) = client.requests
    assert (delete.type, insert.type) == (pb.Update.DELETE, pb.Update.INSERT)
    assert number_of(delete.entity.table_entry) == 128


def test_follows_the_states_of_links(client: PortsClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports_module, "_POLL_S", 0.01)
    one, other = opened(client, "1/0:100G:rs", "2/0:100G:rs")
    client.up = {128}
    wait_until(lambda: one.interface.state() == "UP", "the link to be up")
    del client.ports[128]
    wait_until(lambda: one.interface.state() == "NOT_PRESENT", "the port to be missed")
    client.up = {132}
    wait_until(lambda: other.interface.state() == "UP", "the other link to be up")


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (["1/0:100G", "3/0:10G"], "--port 3/0:10G:none: the front panel has no port 3/0"),
        (["1/0:100G", "128:10G"], "--port 128:10G:none: that is device port 128, as is --port 1/0:100G:none"),
        (["5/0:100G"], "device port 0 has no number in P4Runtime"),
        (["68:100G"], "device port 68 is one of the program's recirculation ports"),
    ],
)
def test_refuses_ports_that_cannot_be(client: PortsClient, texts: list[str], complaint: str) -> None:
    with pytest.raises(PortError, match=complaint):
        opened(client, *texts, recirculation_port=68)
    assert not client.requests


def test_says_which_port_the_switch_refuses(client: PortsClient) -> None:
    client.refuses = lambda update: REFUSED if number_of(update.entity.table_entry) == 132 else None
    with pytest.raises(PortError, match="--port 2/0:10G:none: the switch refuses it: Table Add failed"):
        opened(client, "1/0:100G:rs", "2/0:10G")


def test_says_which_setting_the_switch_did_not_take(client: PortsClient) -> None:
    """The server answers with success then."""
    client.changes = {5: "PM_AN_DEFAULT"}
    with pytest.raises(PortError, match=r"did not take \$AUTO_NEGOTIATION PM_AN_FORCE_ENABLE, and has PM_AN_DEFAULT"):
        opened(client, "1/0:100G:rs:an")


@pytest.mark.parametrize("cpu_port", [192, 64])
def test_takes_the_boards_cpu_ports(client: PortsClient, cpu_port: int) -> None:
    assert opened(client, "1/0:100G", cpu_port=cpu_port)


def test_an_ethernet_cpu_port_can_be_enabled(client: PortsClient) -> None:
    assert [port.number for port in opened(client, "33/0:10G", "1/0:100G", cpu_port=64)] == [128]
    assert set(client.ports) == {64, 128}


def test_refuses_a_program_for_another_cpu_port(client: PortsClient) -> None:
    with pytest.raises(PortError, match=r"for CPU port 320, and the board .* has 192 \(PCIe\) and 64, 65 \(Ethernet\)"):
        opened(client, "1/0:100G", cpu_port=320)
    del client.device[6]
    with pytest.raises(PortError, match=r"has 64, 65 \(Ethernet\): compile .* ARGS=\"--cpu-port 64 "):
        opened(client, "1/0:100G", cpu_port=320)


def test_warns_if_the_cpu_port_is_not_known(client: PortsClient, caplog: pytest.LogCaptureFixture) -> None:
    client.device = {2: [2]}
    with caplog.at_level(logging.WARNING):
        assert opened(client, "1/0:100G", cpu_port=320)
    assert "does not tell which CPU ports the board has" in caplog.text


def test_lets_a_port_of_each_pipe_recirculate(client: PortsClient) -> None:
    opened(client, "1/0:100G", recirculation_port=68)
    updates = client.requests[0]
    assert {update.type for update in updates} == {pb.Update.MODIFY}
    assert [update.entity.table_entry.table_id for update in updates] == [RECIRCULATION] * 2
    assert [number_of(update.entity.table_entry) for update in updates] == [68, 128 + 68]
    assert [one.entity.table_entry.data.fields[0].bool_val for one in updates] == [True, True]


def test_says_which_port_cannot_recirculate(client: PortsClient) -> None:
    client.refuses = lambda update: REFUSED if update.entity.table_entry.table_id == RECIRCULATION else None
    with pytest.raises(PortError, match="device port 20 cannot recirculate"):
        opened(client, "1/0:100G", recirculation_port=20)
    del client.device[2]
    with pytest.raises(BfrtError, match="does not tell how many pipes"):
        opened(client, "1/0:100G", recirculation_port=20)
