# SPDX-License-Identifier: Apache-2.0
"""Protections of the P4 program, and for each the test that must fail without it."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

from .mutants import without
from .scripts import P4SRC, compiler

# Small builds compile and load fast. The case "room for the answer" needs a lane larger than BMv2 can add to a packet.
SMALL = ["-DLANES=2", "-DBLOCK_SIZE=32"]
BUILDS = {"room for the answer": ["-DLANES=1", "-DBLOCK_SIZE=256"]}


# By name: the file, the protection, its replacement, and the test that must fail.
CHANGES = {
    "seen": (
        "bmv2/slot_state.p4",
        "meta.bitmap & meta.worker_bit == 0)",
        "meta.bitmap != meta.full_bitmap)",
        "test_slots.py::test_duplicates_before_and_after_completion_add_nothing",
    ),
    "stale": (
        "bmv2/slot_state.p4",
        "age[31:31] == 1 ||",
        "",
        "test_rounds.py::test_an_older_round_changes_nothing",
    ),
    "serial numbers": (
        "bmv2/slot_state.p4",
        "age[31:31] == 1 ||",
        "hdr.aggregation.seq < meta.seq ||",
        "test_slots.py::test_round_numbers_wrap_around",
    ),
    "reset": (
        "bmv2/slot_state.p4",
        "|| (age == 0 && meta.bitmap == 0)",
        "",
        "test_rounds.py::test_a_half_that_was_reset_takes_only_newer_rounds",
    ),
    "fingerprint": (
        "bmv2/slot_state.p4",
        "if (hdr.aggregation.fingerprint != meta.fingerprint) {",
        "if (false) {",
        "test_rounds.py::test_another_fingerprint_is_an_error_for_all",
    ),
    "start over": (
        "bmv2/slot_state.p4",
        "meta.bitmap = meta.worker_bit;\n        meta.keep = 0;",
        "meta.bitmap = meta.worker_bit;",
        "test_rounds.py::test_a_newer_round_forgets_the_one_under_way",
    ),
    "lanes without values": (
        "bmv2/slot_state.p4",
        "meta.touch = hdr.aggregation.active;\n        meta.present",
        "meta.touch = hdr.aggregation.present;\n        meta.present",
        "test_lanes.py::test_a_lane_that_nobody_has_is_zero",
    ),
    "pool": (
        "include/verdict.p4",
        "meta.room == 0 ||",
        "",
        "test_jobs.py::test_a_slot_outside_the_pool_is_dropped",
    ),
    "half": (
        "include/verdict.p4",
        "|| hdr.aggregation.slot[0:0] != hdr.aggregation.seq[0:0]",
        "",
        "test_jobs.py::test_the_half_must_fit_the_round",
    ),
    "generation": (
        "include/admission.p4",
        'hdr.aggregation.generation : exact @name("generation");',
        "",
        "test_admission.py::test_anyone_else_is_dropped",
    ),
    "VLAN": (
        "include/admission.p4",
        "meta.vlan                  : exact",
        "meta.vlan & 0xF00          : exact",
        "test_vlans.py::test_an_untagged_worker_is_not_admitted_with_a_tag",
    ),
    "room for the answer": (
        "bmv2/aggregation.p4",
        "meta.growth > MAX_GROWTH ||",
        "",
        "test_lanes.py::test_too_little_room_for_the_answer_is_malformed",
    ),
    "lengths": (
        "bmv2/aggregation.p4",
        "hdr.udp.length != length ||",
        "",
        "test_malformed.py::test_wrong_lengths",
    ),
    "checksum": (
        "bmv2/aggregation.p4",
        "|| meta.bad_checksum == 1",
        "",
        "test_malformed.py::test_wrong_ip_checksum",
    ),
    "lanes of the round": (
        "bmv2/aggregation.p4",
        "|| hdr.aggregation.present & ~hdr.aggregation.active != 0",
        "",
        "test_malformed.py::test_wrong_headers",
    ),
    "agreement with itself": (
        "bmv2/aggregation.p4",
        "&& hdr.aggregation.active != hdr.aggregation.fingerprint[7:0]",
        "&& false",
        "test_malformed.py::test_wrong_headers",
    ),
    "asking changes nothing": (
        "bmv2/aggregation.p4",
        "hdr.keys[i].key = NO_KEY;",
        "hdr.keys[i].key = hdr.keys[i].key & NO_KEY;",
        "test_rounds.py::test_a_replay_takes_nothing_from_the_packet_that_asks",
    ),
    "ops of the controller": (
        "bmv2/aggregation.p4",
        "} else if (meta.from_cpu == 0) {",
        "} else if (meta.from_cpu == 0 && hdr.aggregation.op != OP_RESET) {",
        "test_controller_packets.py::test_workers_may_only_send_data_errors_and_hello",
    ),
    "way back": (
        "bmv2/p4reduce.p4",
        "meta.bridged == 1 && standard.egress_port == meta.ingress_port",
        "false",
        "test_bridging.py::test_flooded_to_all_other_ports",
    ),
    "the parent's address": (
        "include/uplink.p4",
        "&& hdr.ipv4.src == meta.parent_ip",
        "",
        "test_leaves.py::test_only_the_parent_may_tell",
    ),
    "the parent's UDP port": (
        "include/uplink.p4",
        "&& hdr.udp.src_port == meta.parent_udp_port",
        "",
        "test_leaves.py::test_only_the_parent_may_tell",
    ),
    "ops of the parent": (
        "bmv2/aggregation.p4",
        "(meta.from_parent == 0 && hdr.aggregation.op == OP_DATA)",
        "hdr.aggregation.op == OP_DATA",
        "test_leaves.py::test_the_parent_may_send_nothing_else",
    ),
    "the parent once": (
        "bmv2/slot_state.p4",
        "|| meta.bitmap != all_workers) {",
        ") {",
        "test_leaves.py::test_a_result_counts_once",
    ),
    "the parent in this round": (
        "bmv2/slot_state.p4",
        "if (age != 0 || hdr",
        "if (hdr",
        "test_leaves.py::test_what_comes_too_early_or_too_late_is_dropped",
    ),
    "the parent in this operation": (
        "bmv2/slot_state.p4",
        "hdr.aggregation.fingerprint != meta.fingerprint || meta",
        "meta",
        "test_leaves.py::test_what_comes_too_early_or_too_late_is_dropped",
    ),
    "the parent's sums": (
        "bmv2/slot_state.p4",
        "meta.bitmap = meta.full_bitmap;\n        meta.keep = 0;",
        "meta.bitmap = meta.full_bitmap;",
        "test_leaves.py::test_the_partial_sums_go_up_and_the_parents_go_down",
    ),
    "one voice": (
        "bmv2/slot_state.p4",
        "&& hdr.aggregation.worker == meta.envoy",
        "",
        "test_leaves.py::test_who_completed_the_round_asks_for_all",
    ),
    "asking the parent changes nothing": (
        "bmv2/aggregation.p4",
        "|| meta.outcome == OUTCOME_SENT_UP\n",
        "\n",
        "test_leaves.py::test_asking_adds_nothing_to_what_goes_up",
    ),
    "lanes of this round": (
        "bmv2/slot_state.p4",
        "meta.present = hdr.aggregation.present;",
        "meta.present = meta.present | hdr.aggregation.present;",
        "test_leaves.py::test_lanes_of_the_former_round_do_not_go_up",
    ),
    "lanes of the rack": (
        "bmv2/slot_state.p4",
        "meta.present = meta.present | hdr.aggregation.present;",
        "meta.present = hdr.aggregation.present;",
        "test_leaves.py::test_the_union_of_the_racks_lanes_goes_up",
    ),
    "errors": (
        "include/replies.p4",
        "if (meta.below == 1 && meta.from_parent == 0) {",
        "if (false) {",
        "test_leaves.py::test_an_error_goes_to_the_root_first",
    ),
    "own name": (
        "bmv2/p4reduce.p4",
        "} else if (meta.forged == 1) {",
        "} else if (false) {",
        "test_forgeries.py::test_forged_frames_are_dropped_and_counted",
    ),
    "hello limits": (
        "bmv2/aggregation.p4",
        "colour == V1MODEL_METER_COLOR_RED ?",
        "false ?",
        "test_hello_limits.py::test_a_flood_at_one_port_leaves_room_for_ranks_at_others",
    ),
    "marks": (
        "bmv2/slot_state.p4",
        "== ECN_CE ? 1w1 : marked;",
        "== ECN_CE ? 1w1 : 1w0;",
        "test_marks.py::test_later_answers_of_a_marked_round",
    ),
    "untouched": (
        "bmv2/checksums.p4",
        " && meta.bad_checksum == 0",
        "",
        "test_bridging.py::test_forwarded_untouched",
    ),
}


def changed(name: str, sources: Path) -> ModuleType:
    """Copy the P4 program to `sources` without one protection, and return the module that compiles it."""
    file, there, instead, _ = CHANGES[name]
    shutil.copytree(P4SRC, sources, ignore=shutil.ignore_patterns("compiled", "__pycache__"))
    (sources / file).write_text(without(sources / file, there, instead))
    return compiler(sources)
