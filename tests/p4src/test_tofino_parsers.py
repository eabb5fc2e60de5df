# SPDX-License-Identifier: Apache-2.0
"""Tofino's assembly is refused where its parsers branch less than their source."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from p4reduce_targets.bfrt.bfruntime_pb2 import ForwardingPipelineConfig
from tests.support.scripts import P4SRC, script

SOURCE = P4SRC / "tna" / "p4reduce.p4"
OPTIONS = ("-D__TARGET_TOFINO__=1", "-DLANES=1", "-DBLOCK_SIZE=32")
EXAMPLES = Path(__file__).parent / "parsers"  # the parsers that two compilers made of this source, fields left out
WHOLE, LOST = ((EXAMPLES / name).read_text() for name in ("whole.bfa", "selects-lost.bfa"))

tofino = script("tofino")
parsers = tofino.tofino_parsers
CPP = shutil.which("cpp")

pytestmark = pytest.mark.skipif(CPP is None, reason="cpp is not on PATH")


def check(assembly: str, *options: str) -> None:
    parsers.check(assembly, SOURCE, options or OPTIONS, CPP)


def test_a_whole_parser_passes() -> None:
    check(WHOLE)


def test_a_parser_without_its_selects_is_refused() -> None:
    with pytest.raises(parsers.BranchesLost) as caught:
        check(LOST)
    said = str(caught.value)
    assert "the ingress parser of the assembly has 1 of the 33 paths that its source has" in said
    assert "the egress parser of the assembly has 1 of the 5 paths that its source has" in said
    assert "https://github.com/p4lang/p4c/pull/5753" in said


def without_match(state: str) -> str:
    changed = re.sub(rf"(    {re.escape(state)}:\n)      match: .*\n", r"\1", WHOLE)
    assert changed != WHOLE
    return changed


@pytest.mark.parametrize(
    ("state", "gress"),
    [
        ("$entry_point.start", "ingress"),
        ("parse_packet_out", "ingress"),
        ("parse_ethernet", "ingress"),
        ("parse_ipv4.$split_0", "ingress"),
        ("parse_udp", "ingress"),
        ("parse_aggregation", "ingress"),
        ("parse_keys", "ingress"),
        ("parse_tag", "ingress"),
        ("$entry_point.start.$split_0", "egress"),
    ],
)
def test_one_state_that_matches_nothing_is_enough(state: str, gress: str) -> None:
    with pytest.raises(parsers.BranchesLost, match=rf"the {gress} parser of the assembly has \d+ of the \d+ paths"):
        check(without_match(state))


@pytest.mark.parametrize(
    ("row", "instead"),
    [
        ("      0x0806:\n", "      0x0800:\n"),  # as the row before
        ("      0x0800:\n", "      0x08**:\n"),  # takes ARP as well
        ("      0x7a52:\n", "      0x****:\n"),
    ],
)
def test_rows_that_are_never_reached_do_not_count(row: str, instead: str) -> None:
    assert WHOLE.count(row) == 1
    with pytest.raises(parsers.BranchesLost):
        check(WHOLE.replace(row, instead))


def test_a_branch_more_in_the_source_is_noticed() -> None:
    """The first row of a state is missing: that of a packet that is submitted again. Its pattern is in octal digits."""
    changed = re.sub(r"      0o1\*{5}:\n(?:        .*\n)+", "", WHOLE)
    with pytest.raises(parsers.BranchesLost, match="has 31 of the 33 paths that its source has"):
        check(changed)


def test_states_that_are_split_merged_or_copied_are_the_same() -> None:
    tree = {"a": ["b", "c", "end"], "b": ["c", "end"], "c": ["accept", "reject"]}
    merged = {"a": ["c", "end", "copy", "end"], "c": ["end", "end"], "copy": ["more", "more"], "more": ["end"]}
    assert parsers.paths("a", tree) == parsers.paths("a", merged) == 6


@pytest.mark.parametrize(
    ("states", "message"), [({"a": ["b"], "b": ["a"]}, "leads to itself"), ({"a": ["b"]}, "no parser state b")]
)
def test_what_is_no_parser(states: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parsers.paths("a", states)
    with pytest.raises(ValueError, match="no parser ingress"):
        check("stage 0 ingress:\n")


# --- the build ------------------------------------------------------------------------------------------------------

COMPILER = """#!/bin/sh
echo "$@" >> "$SAID"
while [ $# -gt 0 ]; do
    case "$1" in
        -o) mkdir -p "$2/pipe"; cp "$ASSEMBLY" "$2/pipe/p4reduce.bfa" ;;
        --p4runtime-files) echo info > "$2" ;;
        --bf-rt-schema) echo schema > "$2" ;;
    esac
    shift
done
"""
ASSEMBLER = """#!/bin/sh
echo "$@" >> "$SAID"
printf '%s' "$ASSEMBLER_SAYS" >&2
chip="$2"
shift 3
echo context > "$1/context.json"
echo binary > "$1/$chip.bin"
"""


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a fake backend that makes whole parsers, and return the file with its programs' arguments."""
    for name, text in {"p4c-barefoot": COMPILER, "bfas": ASSEMBLER}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "tna.p4").touch()
    (tmp_path / "p4test").write_text("#!/bin/sh\n")
    (tmp_path / "p4test").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("P4C_TOFINO_INCLUDE", str(tmp_path))
    monkeypatch.setenv("ASSEMBLY", str(EXAMPLES / "whole.bfa"))
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    monkeypatch.setenv("ASSEMBLER_SAYS", "")
    monkeypatch.setattr(tofino, "figures", lambda *_: tofino.Figures(*range(1, 12)))
    return tmp_path / "said"


def test_a_build(said: Path, tmp_path: Path) -> None:
    tofino.compile_profile("tofino1-32", tmp_path / "out")
    compiler, assembler = said.read_text().splitlines()
    assert "-DCPU_PORT=64 -DRECIRCULATION_PORT=68" in compiler
    assert "--no-warn" not in assembler


def test_tofino_2_has_its_clots(said: Path, tmp_path: Path) -> None:
    tofino.compile_profile("tofino2-64", tmp_path / "out")
    assert "--no-clot" not in said.read_text()


def test_a_build_that_acts_on_no_packet_is_refused_before_it_is_assembled(
    said: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSEMBLY", str(EXAMPLES / "selects-lost.bfa"))
    with pytest.raises(parsers.BranchesLost, match=r"tofino1-32: the ingress parser .*pull/5753"):
        tofino.compile_profile("tofino1-32", tmp_path / "out")
    assert len(said.read_text().splitlines()) == 1


@pytest.mark.usefixtures("said")
def test_a_warning_of_the_assembler_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "p4reduce.bfa:90: warning: Can't match parser state due to previous match\np4reduce.bfa:88: warning: here\n"
    monkeypatch.setenv("ASSEMBLER_SAYS", words)
    with pytest.raises(tofino.WarningsFound, match=r"the assembler, of tofino1-32.*\n.*due to previous match"):
        tofino.compile_profile("tofino1-32", tmp_path / "out")
    tofino.compile_profile("tofino1-32", tmp_path / "out", allowed=(r"previous match", r"here$"))


@pytest.mark.usefixtures("said")
def test_the_assemblers_known_warnings_do_not_fail_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These are all kinds of warnings that p4c 1.2.5.16 gave for the three profiles."""
    words = (
        "a.bfa:4178: warning: meter table should not have bus:, will be ignored",
        "a.bfa:42238: warning: Input xbar hash group 1 mergeable conflict in stage 0",
        "a.bfa:3169: warning: conflicting hash group definition here",
        "a.bfa:19628: warning: exact hashtable 2 does not exist in table forwarding_router_macs",
        "a.bfa:3692: warning: duplicate hash group 0, will merge with",
        "a.bfa:3686: warning: previous definition here",
    )
    monkeypatch.setenv("ASSEMBLER_SAYS", "\n".join(words))
    tofino.compile_profile("tofino1-32", tmp_path / "out")
    monkeypatch.setenv("ASSEMBLER_SAYS", words[1].replace("mergeable ", ""))
    with pytest.raises(tofino.WarningsFound, match="hash group 1 conflict"):
        tofino.compile_profile("tofino1-32", tmp_path / "out")


def test_warnings_that_are_known_pass_and_others_do_not() -> None:
    tofino.check_warnings("it", "a.bfa:1: warning: loop xyz_3\n1 warning, all well\n", (r"loop xyz_\d",))
    with pytest.raises(tofino.WarningsFound) as caught:
        tofino.check_warnings("it", "a: warning: loop xyz_3\nb: Warning: new\n", (r"loop xyz_\d",))
    assert "new" in str(caught.value)
    assert "loop" not in str(caught.value)


def build(*arguments: str) -> tuple[int, str]:
    command = ["python3", str(P4SRC / "tofino.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cpu-port", "512"], "CPU port 512: accepted are 0 to 511"),
        (["--recirculation-port", "128"], "recirculation port 128: accepted are 0 to 127"),
        (["--cpu-port", "196"], "CPU port 196 and recirculation port 68 are one port of a pipe"),
        (["--recirculation-port", "4", "tofino1-32"], "profiles with a second pass, tofino1-64"),
        (["tofino3"], "there is no profile tofino3"),
    ],
)
def test_options_that_are_refused(arguments: list[str], message: str) -> None:
    code, words = build(*arguments)
    assert code == 2
    assert message in words


def test_ports_of_a_build_are_options(said: Path, tmp_path: Path) -> None:
    """The build ends at its parsers, since this backend always makes those of tofino1-32."""
    shipped = tofino.p4info("tofino1-64").read_bytes()
    build("--cpu-port", "192", "--recirculation-port", "70", "--out", str(tmp_path / "out"), "tofino1-64")
    assert "-DCPU_PORT=192 -DRECIRCULATION_PORT=70" in said.read_text()
    assert tofino.p4info("tofino1-64").read_bytes() == shipped


# --- the folder of a build -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("said")
@pytest.mark.parametrize(("name", "chip"), [("tofino1-32", "tofino"), ("tofino2-64", "tofino2")])
def test_a_folder_has_what_controllers_and_switches_load(tmp_path: Path, name: str, chip: str) -> None:
    folder = tmp_path / "share" / "p4reduce" / name
    folder.mkdir(parents=True)
    tofino.compile_profile(name, folder)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert [path for path in files if not path.startswith("build/")] == [
        "bf-rt.json",
        "p4info.txtpb",
        "p4reduce.bin",
        "p4reduce.conf",
        "pipe/context.json",
        f"pipe/{chip}.bin",
    ]

    conf = json.loads((folder / "p4reduce.conf").read_text())
    assert conf["chip_list"] == [{"chip_family": chip, "instance": 0}]
    (program,) = conf["p4_devices"][0]["p4_programs"]
    (pipeline,) = program["p4_pipelines"]
    contents = [
        (tmp_path / path).read_text() for path in (program["bfrt-config"], pipeline["context"], pipeline["config"])
    ]
    assert contents == ["schema\n", "context\n", "binary\n"]

    config = ForwardingPipelineConfig.FromString((folder / "p4reduce.bin").read_bytes())
    (profile,) = config.profiles
    assert config.p4_name == program["program-name"] == "p4reduce"
    assert profile.profile_name == pipeline["p4_pipeline_name"] == "pipe"
    assert [config.bfruntime_info, profile.context, profile.binary] == [b"schema\n", b"context\n", b"binary\n"]
    assert profile.pipe_scope == pipeline["pipe_scope"] == [0, 1, 2, 3]


@pytest.mark.parametrize("length", [0, 127, 128, 16383, 16384, 10_000_000])
def test_a_device_config_of_any_length_is_what_protobuf_reads(length: int) -> None:
    config = ForwardingPipelineConfig.FromString(tofino.device_config(b"schema", b"context", bytes(length)))
    assert config.profiles[0].binary == bytes(length)
    assert config.bfruntime_info == b"schema"
