# SPDX-License-Identifier: Apache-2.0
"""Make packet tests for the paths of the P4 program with p4testgen, p4c's test generator.

python p4src/paths.py [BUILD ...] writes tests/dataplane/paths/BUILD.stf, which tests/dataplane/test_paths.py runs.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "bmv2" / "p4reduce.p4"
TO = HERE.parent / "tests" / "dataplane" / "paths"
GENERATOR = "p4testgen"

# Options of p4c for each build: the shipped one, and one that is small enough for most of its paths.
BUILDS = {"shipped": [], "small": ["-DLANES=1", "-DBLOCK_SIZE=32", "-DSLOTS=64"]}
OPTIONS = [
    *("--target", "bmv2", "--arch", "v1model"),
    "--std=p4-16",
    "--test-backend=STF",  # the format of p4c's own tests: entries, a packet, and what is to come out
    "--track-coverage=STATEMENTS",
    "--seed=1",
    "--packet-size-range=112:9200",  # bits: from an Ethernet header to a packet with all values
    # The tests' switches have ports 1 to 4, and 510 for the controller. A multicast packet leaves 0 in the field.
    "--port-ranges=0:4,510:510",
    # Losses are random.
    "--skip-control-plane-entities=SwitchIngress.drop_simulator.loss_rates,SwitchEgress.drop_simulator.loss_rates",
]
# Tests that each reach a statement which none before them has; and paths by chance, that end with a packet.
COVERING = ["--path-selection=GREEDY_STATEMENT_SEARCH", "--only-covering-tests", "--max-tests=1000"]
RANDOM = ["--path-selection=RANDOM_BACKTRACK", "--output-packet-only", "--max-tests=60"]
COVERED = re.compile(r"Nodes covered: \S+ \((\d+)/(\d+)\)")
# Tests that no switch of ours can run: a packet into port 0, and an entry that drops the frames which end each test.
UNUSABLE = re.compile(r'^packet 0 |own_sources" "address":0x0+ ', re.MULTILINE)


def make(build: str, seconds: int) -> str:
    """All tests of a build in one text; `seconds`: how long the generator may look for the covering ones."""
    covering, said = generate(build, COVERING, seconds)
    others, _ = generate(build, RANDOM, seconds)
    reached, there_are = COVERED.findall(said)[-1]
    usable = [test for test in covering + others if not UNUSABLE.search(test)]
    made = f"{len(covering)} tests; {len(others)} others; {len(usable)} are here"
    head = f"# {reached} of {there_are} statements in {made}\n"
    return head + "".join(f"\n# test {number}\n{test}\n" for number, test in enumerate(usable))


def generate(build: str, selection: list[str], seconds: int) -> tuple[list[str], str]:
    """Return the tests of one run, without traces, and what the generator said."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["timeout", str(seconds), GENERATOR, *OPTIONS, *selection, f"--out-dir={folder}"]
        done = subprocess.run([*command, *BUILDS[build], str(SOURCE)], check=False, capture_output=True, text=True)
        texts = [path.read_text() for path in sorted(Path(folder).glob("*.stf"), key=_number)]
    if not texts:
        raise RuntimeError(done.stderr)
    tests = ["\n".join(line for line in text.splitlines() if line and line[0] != "#") for text in texts]
    return tests, done.stdout + done.stderr


def _number(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("builds", nargs="*", metavar="BUILD", help=f"default: all, which are {', '.join(BUILDS)}")
    parser.add_argument("--seconds", type=int, default=150, metavar="N", help="at most so long a run (default 150)")
    options = parser.parse_args()
    if shutil.which(GENERATOR) is None:
        sys.exit(f"{GENERATOR} is not on PATH: it comes with p4c that is built with -DENABLE_TEST_TOOLS=ON")
    TO.mkdir(exist_ok=True)
    for name in options.builds or BUILDS:
        (TO / f"{name}.stf").write_text(make(name, options.seconds))
