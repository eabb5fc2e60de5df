# SPDX-License-Identifier: Apache-2.0
"""`p4reduce topo` as a user runs it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from p4reduce.errors import P4ReduceError
from p4reduce_bench.processes.network import check_rights
from p4reduce_topos.arguments import build, wire
from p4reduce_topos.model import Wire

TIMEOUT_S = 200
DOCS = Path(__file__).parents[2] / "docs" / "topologies.md"


def topo(*arguments: str, module: str = "p4reduce") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *(("topo",) if module == "p4reduce" else ()), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_the_topologies_are_listed_with_their_diagrams() -> None:
    said = topo("list")
    assert said.returncode == 0
    assert "leaf-spine  (--shape: leaves, spines)" in said.stdout
    assert "h1 ──┐" in said.stdout


def test_what_a_wire_does() -> None:
    text = "rate=100mbit, delay=5ms,jitter=500us,queue=64kB,loss=0.01,duplicate=.5"
    expected = Wire(rate=10**8, delay=0.005, jitter=0.0005, queue=64_000, loss=0.01, duplicate=0.5)
    assert wire("--edge", text) == expected
    assert wire("--edge", "") == Wire()


@pytest.mark.parametrize("text", ["rate", "rate=fast", "delay=5", "loss=-1", "loss=2", "colour=red", "queue=5mbit"])
def test_what_no_wire_does(text: str) -> None:
    with pytest.raises((P4ReduceError, ValueError), match="accepted"):
        wire("--edge", text)


def test_shapes() -> None:
    assert len(build("leaf-spine", 4, "", "", "leaves=4,spines=3").switches) == 7
    for name, core, shape in (("star", "rate=1mbit", ""), ("star", "", "leaves=2"), ("tree", "", "depth=two")):
        with pytest.raises(P4ReduceError, match=r"--core|--shape .* accepted"):
            build(name, 4, "", core, shape)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The one in the documentation."""
    _, _, rest = DOCS.read_text().partition("```python\n")
    (tmp_path / "own.py").write_text(rest.partition("```")[0] + "\n\ndef nothing(workers, edge): pass\n")
    return tmp_path / "own.py"


def test_a_topology_of_ones_own(own: Path) -> None:
    made = build(f"{own}:ring", 4, "rate=1gbit", "rate=1mbit", "switches=4")
    assert (made.name, len(made.switches)) == ("ring", 4)
    assert made.link("s4", "s1").wire == Wire(rate=10**6)
    with pytest.raises(P4ReduceError, match=r"accepted for .*own.py:ring is switches=NUMBER, 0 to 9999"):
        build(f"{own}:ring", 4, "", "", "leaves=4")


ROOMS = """
name: two-rooms
switches: [s1, s2]
hosts: {h1: s1, h2: s1, h3: s2}
links: [[s1, s2]]
edge: rate=100mbit
core: rate=10mbit,delay=1ms
roots: [s2]
"""


def test_a_topology_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rooms.yaml"
    file.write_text(ROOMS)
    made = build(str(file), None, "", "", "")
    assert (made.name, made.workers, made.roots) == ("two-rooms", ("h1", "h2", "h3"), ("s2",))
    assert made.link("h3", "s2").wire == Wire(rate=10**8)
    assert made.link("s1", "s2").wire == Wire(rate=10**7, delay=0.001)
    chosen = build(str(file), 2, "rate=1gbit", "loss=0.1", "")
    assert chosen.workers == ("h1", "h2")
    assert (chosen.link("h1", "s1").wire, chosen.link("s1", "s2").wire) == (Wire(rate=10**9), Wire(loss=0.1))
    other = tmp_path / "rooms.json"
    other.write_text(json.dumps({"switches": ["s1"], "hosts": {"a": "s1", "b": "s1"}}))
    assert (build(str(other), None, "", "", "").name, len(build(str(other), None, "", "", "").links)) == ("rooms", 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("switches: [s1]", "has `hosts`, each with its switch, and `switches`"),
        ("- s1", "list: accepted are the keys name, switches"),
        ("colour: red", "the key 'colour': accepted are the keys name"),
        (ROOMS.replace("[[s1, s2]]", "[[s1]]"), r"links: \['s1'\]: accepted is \[SWITCH, SWITCH\]"),
        (ROOMS.replace("[[s1, s2]]", "[[s1, s2, fast]]"), "links: fast: accepted"),
        (ROOMS.replace("h3: s2", "h3: s9"), "'s9', which is not a node"),
        (ROOMS.replace("h3: s2", "'h$(id)': s2"), r"the name 'h\$\(id\)' is not accepted"),
        (ROOMS.replace("rate=100mbit", "colour=red"), "edge: colour=red: accepted"),
        (ROOMS.replace("roots: [s2]", "roots: s2"), r"roots: 's2': accepted is a list"),
        (ROOMS.replace("h3: s2}", "h3: s2"), "rooms.yaml: .*line"),
    ],
)
def test_what_is_no_topology_in_a_file(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "rooms.yaml").write_text(text)
    with pytest.raises((P4ReduceError, ValueError), match=says):
        build(str(tmp_path / "rooms.yaml"), None, "", "", "")
    (tmp_path / "rooms.json").write_text("{")
    for name, workers, shape, told in (
        ("rooms.json", None, "", "rooms.json: Expecting"), ("none.yaml", None, "", "none.yaml: it cannot be read"),
        ("rooms.yaml", None, "leaves=2", "--shape leaves=2: .* has no parameters"),
    ):  # fmt: skip
        with pytest.raises(P4ReduceError, match=told):
            build(str(tmp_path / name), workers, "", "", shape)


@pytest.mark.parametrize("number", ["0", "1", "-1", "9999", "99999999999999999999", "9" * 5000, "²", ""])
def test_numbers_that_make_no_topology_are_named(own: Path, number: str) -> None:
    shapes = [("star", "others"), ("leaf-spine", "leaves"), ("leaf-spine", "spines"), ("tree", "depth")]
    shapes += [("tree", "fan_out"), ("bottleneck", "pairs"), (f"{own}:ring", "switches")]
    fine = {*((one, "1") for one in ("others", "leaves", "spines", "depth", "fan_out", "pairs"))}
    for name, shape in shapes:
        if (shape, number) in fine | {("others", "0"), ("pairs", "0")}:
            assert build(name, 4, "", "", f"{shape}={number}").workers
            continue
        with pytest.raises((P4ReduceError, ValueError), match=rf"{shape}=.* (accepted|must be)") as refused:
            build(name, 4, "", "", f"{shape}={number}")
        assert f"{shape}={number}" in str(refused.value)


def test_a_function_of_ones_own_that_fails_is_named_with_what_it_was_given(own: Path) -> None:
    own.write_text("def shapeless(workers, edge, *, switches=3): return [1, 2][switches]\n")
    said = r"own.py:shapeless: its function does not accept workers=4, switches=9: IndexError: list index"
    with pytest.raises(P4ReduceError, match=said):
        build(f"{own}:shapeless", 4, "", "", "switches=9")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("{}:square", r"must be a function square\(workers, edge\) in .*own.py"),
        ("{}:Link", r"must be a function Link\(workers, edge\)"),
        ("{}:nothing", "must return a Topology, not None"),
        ("{}", "accepted are star, .* FILE.py:FUNCTION"),
        ("{}/other.py:ring", "there is no file .*other.py"),
    ],
)
def test_what_is_no_topology_of_ones_own(own: Path, name: str, named: str) -> None:
    with pytest.raises((P4ReduceError, ValueError), match=named):
        build(name.format(own), 4, "", "", "")


@pytest.mark.mininet
@pytest.mark.root
@pytest.mark.usefixtures("mininet")
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("run", "ring"), "accepted are star, two-racks"),
        (("run", "star", "--target", "tofino"), "accepted are native"),
        (("run", "star", "--fault", "flood"), "accepted are worker-killed"),
        (("run", "star", "--edge", "rate=1"), "--edge 1: accepted are rates"),
        (("run", "star", "--fault", "forged", "--mtu", "9000"), "--fault forged and --mtu: give only one of them"),
        (
            ("run", "star", "--fault", "forged", "--workers", "1"),
            "a fault on star with 1 worker: accepted are 2 workers or more",
        ),
        (("experiment", "luck"), "accepted are workers"),
    ],
)
def test_what_is_not_accepted_is_named(arguments: tuple[str, ...], named: str) -> None:
    said = topo(*arguments)
    assert said.returncode == 1
    assert named in said.stderr
    assert not said.stdout


@pytest.mark.mininet
@pytest.mark.root
@pytest.mark.usefixtures("mininet")
@pytest.mark.parametrize(
    ("dropped", "said"),
    [
        (
            "-sys_admin",
            "it lacks the capability SYS_ADMIN; in a container, start it with --privileged, or with --cap-add",
        ),
        ("-sys_admin,-net_admin,-net_raw", "it lacks the capabilities SYS_ADMIN, NET_ADMIN, NET_RAW; in a container"),
    ],
)
@pytest.mark.parametrize("arguments", [("topo", "run", "star"), ("demo", "--target", "bmv2")], ids=" ".join)
def test_root_without_rights_is_told_how_a_container_has_them(
    arguments: tuple[str, ...], dropped: str, said: str
) -> None:
    if arguments[0] == "demo" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("needs simple_switch_grpc")
    command = ["setpriv", f"--bounding-set={dropped}", sys.executable, "-m", "p4reduce", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert run.returncode == 1
    assert said in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr


def test_namespaces_that_are_forbidden_otherwise_are_told_likewise() -> None:
    """As by seccomp or AppArmor, beside the capabilities."""
    with pytest.raises(P4ReduceError, match=r"false: ; in a container, start it with --privileged") as refused:
        check_rights("false")
    assert "root may not make network namespaces" in str(refused.value)


@pytest.mark.mininet
@pytest.mark.root
@pytest.mark.slow
@pytest.mark.usefixtures("mininet")
def test_a_run_where_the_settings_of_the_kernel_are_read_only() -> None:
    """As in a container that has the capabilities, and is not privileged."""
    read_only = 'mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@"'
    command = [sys.executable, "-m", "p4reduce", "topo", "run", "star", "--workers", "2", "--numel", "4096", "--json"]
    run = subprocess.run(["unshare", "--mount", "sh", "-c", read_only, "sh", *command], capture_output=True, text=True,
                         timeout=TIMEOUT_S, check=False)  # fmt: skip
    assert run.returncode == 0, run
    assert json.loads(run.stdout)["wrong"] == 0


@pytest.mark.mininet
@pytest.mark.root
@pytest.mark.usefixtures("mininet")
def test_a_run() -> None:
    said = topo("run", "star", "--workers", "2", "--numel", "4096", "--json", module="p4reduce_topos")
    assert said.returncode == 0, said
    made = json.loads(said.stdout)
    assert made["wrong"] == 0
    assert made["carried"]["h1>s1"] > 4096 * 4 * 0.1


@pytest.mark.mininet
@pytest.mark.root
@pytest.mark.slow
@pytest.mark.usefixtures("mininet")
def test_a_run_of_ones_own(own: Path) -> None:
    said = topo("run", f"{own}:ring", "--workers", "3", "--numel", "4096", "--shape", "switches=3", "--json")
    assert said.returncode == 0, said
    made = json.loads(said.stdout)
    assert made["wrong"] == 0
    assert made["carried"]["s2>s1"] > 4096 * 4 * 0.1


@pytest.mark.mininet
@pytest.mark.root
@pytest.mark.slow
@pytest.mark.usefixtures("mininet")
def test_a_fault() -> None:
    said = topo("run", "star", "--workers", "2", "--fault", "other-shape", "--json")
    assert said.returncode == 0, said
    assert {end["error"] for end in json.loads(said.stdout)["ranks"].values()} == {"MismatchError"}


@pytest.mark.mininet
@pytest.mark.root
@pytest.mark.slow
@pytest.mark.usefixtures("mininet")
def test_the_prompt() -> None:
    command = [sys.executable, "-m", "p4reduce", "topo", "run", "star", "--workers", "2", "--cli"]
    asked = "h1 ping -c 1 h2\nh2 ping -c 1 10.0.255.1\nexit\n"
    said = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert said.returncode == 0, said
    assert said.stderr.count(" 0% packet loss") == 2, said  # where Mininet writes


@pytest.mark.mininet
@pytest.mark.root
@pytest.mark.slow
@pytest.mark.usefixtures("mininet")
def test_a_capture(tmp_path: Path) -> None:
    if shutil.which("dumpcap") is None and shutil.which("tcpdump") is None:
        pytest.skip("needs dumpcap or tcpdump on PATH")
    said = topo("run", "star", "--workers", "2", "--numel", "4096", "--pcap", str(tmp_path / "made"), "--json")
    assert said.returncode == 0, said
    files = {file.name: file.read_bytes() for file in (tmp_path / "made").iterdir()}
    assert sorted(files) == ["s1-eth1.pcap", "s1-eth2.pcap"]
    # Both ways of the port: to and from the aggregation's UDP port of 10.0.255.1.
    switch, port = bytes([10, 0, 255, 1]), (31314).to_bytes(2, "big")
    for frames in files.values():
        assert switch + b"\n\x00\x00" in frames
        assert port in frames


@pytest.mark.mininet
@pytest.mark.root
@pytest.mark.slow
@pytest.mark.usefixtures("mininet")
def test_a_script_of_ones_own_at_every_worker(tmp_path: Path) -> None:
    """Its settings are in its environment; where one ends badly, the command does."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, numpy as np\nfrom p4reduce import Communicator\n"
        "with Communicator(job='own') as communicator:\n"
        "    print('sum', communicator.allreduce(np.full(64, communicator.rank + 1.0, np.float32))[0])\n"
        "    failing = communicator.rank == 1 and len(sys.argv) > 1\n"
        "sys.exit(3 if failing else 0)\n"
    )
    trace = tmp_path / "own.trace.json"
    said = topo("run", "star", "--workers", "3", "--exec", str(script), "--trace", str(trace))
    assert said.returncode == 0, said
    assert "3 workers" in said.stderr
    assert [one["address"] for one in json.loads(trace.read_text())["workers"]] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert "<canvas" in (tmp_path / "own.html").read_text()
    assert sorted(line for line in said.stdout.splitlines() if " | " in line) == [
        f"h{number} | sum 6.0" for number in (1, 2, 3)
    ]
    assert "all 3 ranks completed" in said.stdout
    said = topo("run", "star", "--workers", "3", "--exec", f"{script} badly")
    assert said.returncode == 1
    assert "failed: rank 1 with status 3" in " ".join(said.stderr.split())


@pytest.mark.mininet
@pytest.mark.root
@pytest.mark.slow
@pytest.mark.usefixtures("mininet")
def test_a_p4_program_of_ones_own() -> None:
    """That which is shipped, from a folder."""
    pipeline = Path(__file__).parents[2] / "p4src" / "compiled"
    said = topo(
        "run", "star", "--workers", "2", "--numel", "4096", "--target", "sim", "--pipeline", str(pipeline), "--json"
    )
    assert said.returncode == 0, said
    assert json.loads(said.stdout)["wrong"] == 0
    said = topo("run", "star", "--pipeline", "no-such-folder")
    assert said.returncode == 1
    assert "the folder has no p4reduce.json" in said.stderr


def test_folders_that_are_files_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments in (["run", "star", "--pcap"], ["experiment", "density", "--out"]):
        said = topo(*arguments, str(tmp_path / "file"))
        assert said.returncode == 1
        assert f"{arguments[-1]} {tmp_path}/file: must be a folder, and this is a file" in " ".join(
            (said.stdout + said.stderr).split()
        )
        assert "Traceback" not in said.stderr
