# SPDX-License-Identifier: Apache-2.0
"""The reference page of the control service: methods, messages and fields, with the comments in jobs.proto."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from website.repository import ROOT

PROTO = ROOT / "hostlib" / "p4reduce" / "control" / "jobs.proto"
_MESSAGE, _ENUM, _SERVICE = 4, 5, 6  # field numbers of FileDescriptorProto: paths to comments consist of them
_FIELD, _VALUE, _METHOD = 2, 2, 2
_NESTED, _NESTED_ENUM = 3, 4  # field numbers of DescriptorProto
_LONGEST_S = 60.0


def described() -> FileDescriptorProto:
    """Return the descriptor of jobs.proto that protoc makes, with its comments."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "jobs.pb"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO.parent}", "--include_source_info"]
        subprocess.run([*command, f"--descriptor_set_out={out}", PROTO.name], check=True, timeout=_LONGEST_S)
        return FileDescriptorSet.FromString(out.read_bytes()).file[0]


class _Page:
    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._comments = {
            tuple(place.path): " ".join((place.leading_comments + place.trailing_comments).split())
            for place in file.source_code_info.location
        }

    def text(self) -> str:
        parts = [
            "# gRPC\n",
            f"This is the control service, in the package `{self._file.package}`. It is defined in"
            " [`jobs.proto`](../../hostlib/p4reduce/control/jobs.proto).\n",
        ]
        for number, service in enumerate(self._file.service):
            parts.append(f"## {service.name}\n\n{self._said(_SERVICE, number)}\n")
            parts.append("| method | request | response | |\n|---|---|---|---|")
            for index, method in enumerate(service.method):
                takes, answers = _link(method.input_type), _link(method.output_type)
                parts.append(
                    f"| `{method.name}` | {'stream of ' * method.client_streaming}{takes}"
                    f" | {'stream of ' * method.server_streaming}{answers}"
                    f" | {self._said(_SERVICE, number, _METHOD, index)} |"
                )
            parts.append("")
        parts.append("## Messages\n")
        parts += [self._message(one, "", _MESSAGE, number) for number, one in enumerate(self._file.message_type)]
        parts.append("## Enumerations\n")
        parts += [self._enumeration(one, "", _ENUM, number) for number, one in enumerate(self._file.enum_type)]
        return "\n".join(parts)

    def _said(self, *path: int) -> str:
        return self._comments.get(path, "").replace("|", "\\|").replace("<", "&lt;").replace("[[", "\\[\\[")

    def _message(self, message: DescriptorProto, outer: str, *path: int) -> str:
        """Return the section of a message.

        outer: the enclosing message with a dot, or nothing at the top level.
        """
        maps = {one.name: one for one in message.nested_type if one.options.map_entry}
        rows = [
            f"| {field.number} | `{field.name}` | {_choice(message, field)}{_type(field, maps)}"
            f" | {self._said(*path, _FIELD, index)} |"
            for index, field in enumerate(message.field)
        ]
        table = (
            "\n| | field | type | |\n|---|---|---|---|\n" + "\n".join(rows) + "\n" if rows else "\nIt has no fields.\n"
        )
        inner = f"{outer}{message.name}."
        within = [
            *(
                self._message(one, inner, *path, _NESTED, index)
                for index, one in enumerate(message.nested_type)
                if one.name not in maps
            ),
            *(self._enumeration(one, inner, *path, _NESTED_ENUM, index) for index, one in enumerate(message.enum_type)),
        ]
        return "\n".join([f"### {outer}{message.name}\n\n{self._said(*path)}\n{table}", *within])

    def _enumeration(self, enumeration: EnumDescriptorProto, outer: str, *path: int) -> str:
        rows = [
            f"| {value.number} | `{value.name}` | {self._said(*path, _VALUE, index)} |"
            for index, value in enumerate(enumeration.value)
        ]
        return (
            f"### {outer}{enumeration.name}\n\n{self._said(*path)}\n\n| | | |\n|---|---|---|\n" + "\n".join(rows) + "\n"
        )


def page() -> str:
    return _Page(described()).text()


def _type(field: FieldDescriptorProto, maps: dict[str, DescriptorProto]) -> str:
    name = field.type_name.rpartition(".")[2]
    if name in maps:
        key, value = maps[name].field
        return f"map of {_type(key, {})} to {_type(value, {})}"
    plain = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    said = _link(field.type_name) if field.type_name else f"`{plain}`"
    return f"repeated {said}" if field.label == FieldDescriptorProto.LABEL_REPEATED else said


def _choice(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    if field.proto3_optional:
        return "optional "
    return f"one of {message.oneof_decl[field.oneof_index].name}: " if field.HasField("oneof_index") else ""


def _link(type_name: str) -> str:
    """Return the link to a type.

    type_name: the full name of protoc, with the package: `.p4reduce.jobs.v1.Join`.
    """
    name = ".".join(part for part in type_name.split(".") if part[:1].isupper())
    return f"[`{name}`](#{name.lower().replace('.', '')})"
