# SPDX-License-Identifier: Apache-2.0
"""An example of a settings file. It is generated from the settings, so it is always complete."""

from __future__ import annotations

import json
import textwrap
from typing import Any

from p4reduce_controller.base.schema import Setting
from p4reduce_controller.settings.settings import SCHEMA

_WIDTH = 118
# Examples for settings whose default does not show how a value is written.
_FORMS = {
    "mac": ["02:00:0a:00:00:fe"],
    "hosts": {"02:00:00:00:00:01": 1},
    "routes": [{"destination": "10.0.1.0/24", "port": 2, "next_hop_mac": "02:00:00:00:00:02"}],
    "spare": ["127.0.0.1:9561"],
    "uplink": ["127.0.0.1:9560:2=127.0.0.1:9559"],
}
_HEAD = """\
# Settings of `p4reduce controller --config FILE`. Each key is an option without its first dashes: --tls-cert is
# tls_cert or tls-cert. An option wins over the file. Each line with a key shows its default, or how to write it; remove
# the "# " to set it.
"""
_TREE = """\
# Several switches, as leaves and spines. Each has its own switch, address, mac, ports, hosts and routes. A leaf with
# links to several spines has a list: uplink = [{ port = 3, to = "spine1" }, { port = 4, to = "spine2" }]. A spare is
# marked by spare = true.
"""
EXAMPLE_OF_A_TREE = """\
[[switches]]
name = "spine"
switch = "127.0.0.1:9559"
address = ["10.0.255.1"]
ports = [1, 2]

[[switches]]
name = "leaf1"
switch = "127.0.0.1:9560"
address = ["10.0.255.2"]
ports = [1, 2, 3]
uplink = { port = 3, to = "spine" }
hosts = { "02:00:00:00:00:01" = 1 }

[[switches]]
name = "leaf2"
switch = "127.0.0.1:9561"
address = ["10.0.255.3"]
ports = [1, 2, 3]
uplink = { port = 3, to = "spine" }
"""


def example() -> str:
    """Return the example as TOML in which everything is a comment, so that it changes nothing."""
    scalars = [one for one in SCHEMA.values() if one.spec.help]
    parts = [_HEAD, *map(_entry, scalars), _TREE + _commented(EXAMPLE_OF_A_TREE)]
    return "\n".join(parts)


def _entry(setting: Setting) -> str:
    value = setting.default or _FORMS.get(setting.key, setting.default)
    return _comment(setting.help) + f"# {setting.key} = {_toml(value)}\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)  # JSON's form of strings, numbers and booleans is TOML's too


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() else json.dumps(name)


def _comment(text: str) -> str:
    return "".join(f"## {line}\n" for line in textwrap.wrap(text, _WIDTH))


def _commented(text: str) -> str:
    return "".join(f"# {line}\n" if line else "#\n" for line in text.splitlines())
