# SPDX-License-Identifier: Apache-2.0
"""Table of how each block of code in the documents is run, or why it is not. A missing block fails a test.

A rule is for the blocks of the pages that its first pattern names, and that have its text; the first that fits counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from tests.support.document_blocks import Block


@dataclass(frozen=True)
class Elsewhere:
    """A block that a test elsewhere runs. test: the test's path in the project."""

    test: str


@dataclass(frozen=True)
class Not:
    """A block that is not run. Names and options of p4reduce in shell blocks are checked all the same."""

    why: str


@dataclass(frozen=True)
class Tutorial:
    """A block that is run with all other blocks of its page, in their order, as a reader would."""


@dataclass(frozen=True)
class Shell:
    """A block that is run by itself, in a network of its own, in a folder with the files that `session.py` writes.

    before: what runs there first. addresses: that the network has. one_by_one: each command by itself. left_out: of
    commands that stand for another choice. name: a host that is this one. needs: a program.
    """

    before: str = ""
    addresses: Sequence[str] = ()
    one_by_one: bool = False
    left_out: str = ""
    name: str = ""
    needs: str = ""


@dataclass(frozen=True)
class Python:
    """A block that is run with the rank, model and gradients of `prepared.py`. before: code that runs first."""

    before: str = ""


Way = Elsewhere | Not | Tutorial | Shell | Python

SWITCH = "p4reduce switch --target native --port 1=udp:127.0.0.1:31314"
STACK = f"{SWITCH}\np4reduce controller"
RANKS = """
(RANK=0 WORLD_SIZE=2 P4REDUCE_LOCAL=off python forever.py &)
(RANK=1 WORLD_SIZE=2 P4REDUCE_LOCAL=off python forever.py &)
until p4reduce jobs list | grep -q ready; do sleep 0.1; done
"""
FABRIC = """
p4reduce switch --target native --grpc 127.0.0.1:9559 --port 1=udp:127.0.0.1:0
p4reduce switch --target native --grpc 127.0.0.1:9562 --port 1=udp:127.0.0.1:0 --port 2=udp:127.0.0.1:0 --port 3=udp:127.0.0.1:0
p4reduce controller --config spine.toml
"""  # noqa: E501
VETHS = "ip link add veth1 type veth peer name far1\nip link add veth2 type veth peer name far2"
MEASURED = Not("hours of measuring, with links; tests/bench measures with less")
BUILD = Not("builds and tests the project itself")
PACKETS = Python(before="prepared.capture('file.pcap'); prepared.capture('job.pcap')")

RULES: list[tuple[str, str, Way]] = [
    ("docs/tutorial/index.md", "make setup", Not("sets up what this runs in")),
    ("docs/tutorial/4-*", "tofino.py", Elsewhere("tests/tofino/test_placement.py")),
    ("docs/tutorial/4-*", "tests/tofino", Elsewhere("tests/tofino/test_jobs.py")),
    ("docs/tutorial/4-*", "SWITCH:9559", Not("needs a switch")),
    ("docs/tutorial/5-*", "apt install", Not("installs packages")),
    ("docs/tutorial/5-*", "P4C=docker", Not("needs Docker; tests/p4src/test_compile_command.py has one that is faked")),
    ("docs/tutorial/*", "", Tutorial()),
    ("README.md", "make demo", Elsewhere("tests/demo/test_end_to_end.py")),
    ("README.md", "p4reduce switch", Shell()),
    ("README.md", "register_comm_hook", Python()),
    ("README.md", "import numpy", Elsewhere("tests/examples/test_sum.py")),
    ("CONTRIBUTING.md", "rdpcap", PACKETS),
    ("CONTRIBUTING.md", "example.py: one block", Python()),
    ("CONTRIBUTING.md", "P4REDUCE_BACKEND=python", Not("stops in a debugger")),
    ("CONTRIBUTING.md", "tcpdump", Not("needs tcpdump, and goes on until Ctrl-C")),
    ("CONTRIBUTING.md", "", BUILD),
    ("docs/running.md", "tls-ca controllers.pem", Shell(addresses=["10.0.0.5"], name="switch.example")),
    ("docs/running.md", "make dist", Elsewhere("tests/packaging/test_wheels.py")),
    ("docs/running.md", "--target sim", Shell()),
    ("docs/running.md", "veth1", Shell(before=VETHS, needs="simple_switch_grpc")),
    (
        "docs/running.md",
        "compile.py",
        Not("compiles into p4src/compiled; tests/p4src/test_builds.py compiles elsewhere"),
    ),
    ("docs/running.md", "--mtu 9000", Shell(before=SWITCH)),
    ("docs/running.md", "--uplink 127", Shell(addresses=["10.0.0.5", "10.0.0.6", "10.0.0.7", "10.0.1.5", "10.0.2.5"])),
    ("docs/running.md", "--spare", Shell(addresses=["10.0.0.5", "10.0.0.6"])),
    ("docs/running.md", "10.0.0.6:31314", Shell(addresses=["10.0.0.5", "10.0.0.6"])),
    (
        "docs/running.md",
        "--listen 0.0.0.0",
        Shell(before=SWITCH.replace("127.0.0.1", "10.0.0.254"), addresses=["10.0.0.254"]),
    ),
    ("docs/running.md", "type vlan", Elsewhere("tests/e2e/test_vlans.py")),
    ("docs/running.md", "--nnodes 4", Not("needs four hosts; tutorial/3-hosts.md is run with two")),
    ("docs/running.md", "--state /var", Not("says what is added to other options; tests/controller/test_restart.py")),
    ("docs/running.md", "switches drain", Shell(before=FABRIC, addresses=["10.0.255.4"], left_out="--now")),
    ("docs/running.md", "jobs abort", Shell(before=STACK + RANKS)),
    ("docs/running.md", "p4reduce shell", Not("needs p4runtime-shell, in an environment of its own")),
    ("docs/running.md", "p4reduce switch", Shell()),
    ("docs/tofino-switch.md", "", Not("needs a switch with the SDE, or the SDE's driver and model")),
    ("docs/tenants.md", "", Not("has parts that are one's own; tests/controller/test_pools.py and its neighbours")),
    ("docs/standby.md", "", Not("needs etcd on three hosts; tests/controller/test_election.py has it on one")),
    ("docs/seeing.md", "pip install", Not("installs packages")),
    ("docs/seeing.md", "--page", Shell(before=SWITCH)),
    ("docs/seeing.md", "--metrics", Shell(before=SWITCH)),
    ("docs/topologies.md", "topo run", Elsewhere("tests/topos/test_commands.py")),
    ("docs/topologies.md", "def ring", Elsewhere("tests/topos/test_commands.py")),
    ("docs/c-api.md", "python -m p4reduce.fastpath", Shell(before=STACK)),
    ("docs/c-api.md", "p4reduce.backend()", Elsewhere("tests/docs/test_other_languages.py")),
    ("docs/c-api.md", "p4reduce_allreduce(", Elsewhere("tests/docs/test_other_languages.py")),
    ("docs/c-api.md", "pytest", BUILD),
    ("docs/native.md", "pytest", BUILD),
    (
        "docs/native.md",
        "ens5",
        Shell(before="ip link add ens5 type veth peer name ens6", addresses=["192.168.1.5"], one_by_one=True),
    ),
    ("docs/pytorch.md", 'init_process_group("gloo")', Elsewhere("tests/e2e/test_pytorch_docs.py")),
    ("docs/pytorch.md", "--target native", Elsewhere("tests/e2e/test_pytorch_docs.py")),
    ("docs/pytorch.md", "p4reduce analyze", Shell(before="python recorded.py")),
    ("docs/pytorch.md", "torchrun --nproc-per-node 2", Elsewhere("tests/docs/test_tutorial.py")),
    ("docs/pytorch.md", 'init_process_group("p4reduce")', Python(before="dist.destroy_process_group()")),
    ("docs/pytorch.md", "state_dict", Python(before="state = BlockTopKState(communicator, ddp, ratio=0.5)")),
    ("docs/pytorch.md", "", Python()),
    ("docs/local.md", "", Python()),
    ("docs/frameworks.md", "--target native", Shell()),
    ("docs/frameworks.md", "ray job submit", Not("needs a cluster; tests/examples/test_frameworks.py gives as much")),
    ("docs/frameworks.md", "controller.example", Not("needs a cluster; tests/deploy/test_slurm.py has one of its own")),
    ("docs/frameworks.md", "train_elastic.py", Elsewhere("tests/examples/test_elastic.py")),
    ("docs/frameworks.md", "train_accelerate.py", Elsewhere("tests/examples/test_frameworks.py")),
    ("docs/frameworks.md", "", Elsewhere("tests/examples/test_docs.py")),
    ("docs/rounds.md", "trace record", Elsewhere("tests/trace/test_jobs.py")),
    ("docs/rounds.md", "trace dissector", Elsewhere("tests/trace/test_dissector.py")),
    ("docs/rounds.md", "tcpdump", Not("needs tcpdump; tests/trace/test_outputs.py draws captures")),
    ("docs/rounds.md", "topo run", Elsewhere("tests/topos/test_commands.py")),
    ("docs/planning.md", "", Not("takes minutes; tests/simulator/test_plan.py makes smaller plans")),
    ("docs/simulator.md", "tests.measurements", MEASURED),
    ("docs/simulator.md", "--ranks 1024", Elsewhere("tests/simulator/test_scale.py")),
    ("docs/simulator.md", "p4reduce_simulator.figures", Not("takes minutes; tests/simulator/test_figures.py")),
    ("docs/simulator.md", "p4reduce simulate", Shell(one_by_one=True)),
    ("docs/simulator.md", "", Python()),
    ("docs/speed-up.md", "p4reduce bench", MEASURED),
    ("docs/speed-up.md", "p4reduce top", Not("`top` goes on until Ctrl-C; tests/controller/test_looking.py")),
    ("docs/speed-up.md", "p4reduce status", Shell(before=STACK)),
    ("docs/speed-up.md", "", Python()),
    ("docs/troubleshooting.md", "rdpcap", PACKETS),
    ("docs/benchmarks.md", "", MEASURED),
    ("docs/decisions/49-*", "p4reduce bench", MEASURED),
    ("docs/first-training.md", "apt install", Not("installs packages")),
    ("docs/first-training.md", "", Elsewhere("tests/docs/test_first_training.py")),
    ("docs/deploying.md", "docker", Not("needs Docker and Kubernetes; tests/deploy reads their files")),
    ("docs/deploying.md", "sbatch", Elsewhere("tests/deploy/test_slurm.py")),
    ("docs/deploying.md", "install -D", Not("needs systemd, and this machine; tests/deploy/test_systemd.py")),
    ("docs/deploying.md", "switches drain", Not("needs systemd; tests/e2e/test_upgrade.py does the same")),
    ("docs/deploying.md", "systemctl stop", Not("needs systemd; tests/e2e/test_back_up.py does the same")),
    (
        "docs/security.md",
        "openssl req",
        Not("has parts that are one's own; tests/deploy/test_certificates.py makes such"),
    ),
    ("docs/security.md", "fuzz", BUILD),
]


def way(block: Block) -> Way | None:
    for pages, text, found in RULES:
        if fnmatch(block.page, pages) and text in block.text:
            return found
    return None
