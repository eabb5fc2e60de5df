# SPDX-License-Identifier: Apache-2.0
"""`p4reduce topo` as a user runs it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TIMEOUT_S = 200
PIPELINE = Path(__file__).parents[2] / "p4src" / "compiled"

pytestmark = [pytest.mark.mininet, pytest.mark.root, pytest.mark.usefixtures("mininet")]


def topo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "p4reduce_topos", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


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
        (("run", "star", "--pipeline", "no-such-folder"), "the folder has no p4reduce.json"),
        (("experiment", "luck"), "accepted are workers"),
    ],
)
def test_what_is_not_accepted_is_named(arguments: tuple[str, ...], named: str) -> None:
    said = topo(*arguments)
    assert said.returncode == 1
    assert named in said.stderr
    assert not said.stdout


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


@pytest.mark.slow
def test_a_run_where_the_settings_of_the_kernel_are_read_only() -> None:
    """Such is a container that has the capabilities, and is not privileged."""
    read_only = 'mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@"'
    command = [sys.executable, "-m", "p4reduce", "topo", "run", "star", "--workers", "2", "--numel", "4096", "--json"]
    run = subprocess.run(["unshare", "--mount", "sh", "-c", read_only, "sh", *command], capture_output=True, text=True,
                         timeout=TIMEOUT_S, check=False)  # fmt: skip
    assert run.returncode == 0, run
    assert json.loads(run.stdout)["wrong"] == 0


@pytest.mark.slow
def test_a_fault() -> None:
    said = topo("run", "star", "--workers", "2", "--fault", "other-shape", "--json")
    assert said.returncode == 0, said
    assert {end["error"] for end in json.loads(said.stdout)["ranks"].values()} == {"MismatchError"}


@pytest.mark.slow
def test_the_prompt() -> None:
    command = [sys.executable, "-m", "p4reduce", "topo", "run", "star", "--workers", "2", "--cli"]
    asked = "h1 ping -c 1 h2\nh2 ping -c 1 10.0.255.1\nexit\n"
    said = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert said.returncode == 0, said
    assert said.stderr.count(" 0% packet loss") == 2, said  # where Mininet writes


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_script_of_ones_own_at_every_worker(tmp_path: Path) -> None:
    """The script's settings are in its environment. If the script fails at a worker, the command fails."""
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


@pytest.mark.parametrize(
    ("arguments", "link"),
    [
        (["star", "--workers", "2"], "h1>s1"),
        pytest.param(["{own}:ring", "--workers", "3", "--shape", "switches=3"], "s2>s1", marks=pytest.mark.slow),
        # The program that is shipped, from a folder.
        pytest.param(
            ["star", "--workers", "2", "--target", "sim", "--pipeline", str(PIPELINE)], "h1>s1", marks=pytest.mark.slow
        ),
    ],
    ids=["star", "a topology of one's own", "a P4 program of one's own"],
)
def test_a_run(own: Path, arguments: list[str], link: str) -> None:
    said = topo("run", *(one.format(own=own) for one in arguments), "--numel", "4096", "--json")
    assert said.returncode == 0, said
    made = json.loads(said.stdout)
    assert made["wrong"] == 0
    assert made["carried"][link] > 4096 * 4 * 0.1


def test_the_topologies_are_listed_with_their_diagrams() -> None:
    said = topo("list")
    assert said.returncode == 0
    assert "leaf-spine  (--shape: leaves, spines)" in said.stdout
    assert "h1 ──┐" in said.stdout


def test_folders_that_are_files_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments in (["run", "star", "--pcap"], ["experiment", "density", "--out"]):
        said = topo(*arguments, str(tmp_path / "file"))
        assert said.returncode == 1
        assert f"{arguments[-1]} {tmp_path}/file: must be a folder, and this is a file" in " ".join(
            (said.stdout + said.stderr).split()
        )
        assert "Traceback" not in said.stderr
