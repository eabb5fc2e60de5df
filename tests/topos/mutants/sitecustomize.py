# SPDX-License-Identifier: Apache-2.0
"""Python runs this as it starts, where this folder is on PYTHONPATH: P4REDUCE_WITHOUT names what to take out."""

import os
from dataclasses import replace
from importlib import import_module
from math import inf
from typing import Any

PORTS = range(1, 9)


def admitted_everywhere(program: Any, job: Any) -> list[Any]:
    """Return admission entries that admit the workers at every port of the switch."""
    return [
        entry
        for port in PORTS
        for entry in original(program, replace(job, workers=tuple(replace(one, port=port) for one in job.workers)))
    ]


# Name -> all that it takes: where each part is, and what takes its place.
PROTECTIONS: dict[str, list[tuple[str, str, str, Any]]] = {
    "ranks that are lost": [("p4reduce_controller.jobs.jobs", "Jobs", "lost", lambda *_, **__: None)],
    "time-outs": [("p4reduce.protocol.recovery", "Recovery", "_due_at", property(lambda _: inf))],
    "switches that are lost": [
        ("p4reduce_controller.service.switch_listener", "SwitchListener", "connected", lambda *_, **__: None)
    ],
    "controllers that are lost": [("p4reduce.control.client", "Session", "_on_stream_end", lambda *_: None)],
    "jobs that are kept": [("p4reduce_controller.jobs.jobs", "Jobs", "restore", lambda *_: None)],
    "ranks that come back": [("p4reduce.control.client", "Session", "_ask_to_return", lambda *_: None)],
    "ports that are admitted": [
        ("p4reduce_controller.p4runtime.program", "Program", "admissions", admitted_everywhere)
    ],
    "leases": [("p4reduce_controller.base.listening", "", "keepalive", lambda _: [])],
}

for module, owner, name, instead in PROTECTIONS.get(os.environ.get("P4REDUCE_WITHOUT", ""), []):
    where = getattr(import_module(module), owner) if owner else import_module(module)
    original = getattr(where, name)
    setattr(where, name, instead)
