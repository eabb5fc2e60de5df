# SPDX-License-Identifier: Apache-2.0
"""The product's copy of BF Runtime's definitions is a part of the tests' copy, which is complete.

The tests' server cannot show a wrong number of a field that it ignores.
"""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from tests.support.bfrt import bfruntime_pb2 as bfrt


def described(file: FileDescriptor) -> FileDescriptorProto:
    """Return the definitions of a module of stubs."""
    made = FileDescriptorProto()
    file.CopyToProto(made)
    return made


OURS, COMPLETE = described(pb.DESCRIPTOR), described(bfrt.DESCRIPTOR)
MESSAGES = {message.name: message for message in COMPLETE.message_type}
ENUMS = {enum.name: enum for enum in COMPLETE.enum_type}


def kind(field: FieldDescriptorProto) -> tuple[object, ...]:
    """Return what a field is on the wire. `Detail` is the product's name of google.protobuf.Any."""
    name = field.type_name.removeprefix(f".{OURS.package}.").removeprefix(f".{COMPLETE.package}.")
    return field.number, field.type, field.label, name.replace(".google.protobuf.Any", "Detail")


def check_message(ours: DescriptorProto, complete: DescriptorProto) -> None:
    """Compare a message and those in it."""
    fields = {field.name: kind(field) for field in complete.field}
    assert {field.name: kind(field) for field in ours.field}.items() <= fields.items()
    enums = {enum.name: enum for enum in complete.enum_type}
    messages = {message.name: message for message in complete.nested_type}
    for enum in ours.enum_type:
        check_enum(enum, enums[enum.name])
    for message in ours.nested_type:
        check_message(message, messages[message.name])


def check_enum(ours: EnumDescriptorProto, complete: EnumDescriptorProto) -> None:
    assert {(one.name, one.number) for one in ours.value} <= {(one.name, one.number) for one in complete.value}


@pytest.mark.parametrize("ours", [one for one in OURS.message_type if one.name != "Detail"], ids=lambda one: one.name)
def test_messages_have_the_numbers_of_bf_runtime(ours: DescriptorProto) -> None:
    check_message(ours, MESSAGES[ours.name])


@pytest.mark.parametrize("ours", OURS.enum_type, ids=lambda one: one.name)
def test_enums_have_the_numbers_of_bf_runtime(ours: EnumDescriptorProto) -> None:
    check_enum(ours, ENUMS[ours.name])
