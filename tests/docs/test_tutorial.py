# SPDX-License-Identifier: Apache-2.0
"""The steps of the tutorial, each from its first block to its last, and what is printed there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.document_blocks import ROOT, Block, blocks, every

from .session import WAIT, run
from .ways import Not, Tutorial, way

pytestmark = [pytest.mark.slow, pytest.mark.root]

NOT_RUN = [block for block in every("sh") if isinstance(way(block), Not)]
STEPS = list(dict.fromkeys(block.page for block in every("sh") if isinstance(way(block), Tutorial)))
NEEDS = {"docs/tutorial/2-bmv2.md": "simple_switch_grpc mnexec", "docs/tutorial/3-hosts.md": "openssl"}
NEEDS["docs/tutorial/5-p4-program.md"] = "p4c-bm2-ss git"
END = "---- end of block"


def is_printed(line: str, output: str) -> bool:
    """Return whether the output has the line, in which `...` stands for anything.

    Under torchrun, Python prints a line and its end separately, so two ranks may share a line.
    """
    pattern = ".*".join(map(re.escape, line.split("...")))
    return re.search(pattern, output) is not None


@pytest.mark.parametrize("page", STEPS)
def test_a_step(page: str, tmp_path: Path) -> None:
    for folder in ("p4src", "tests", "examples"):  # as in the project's folder
        (tmp_path / folder).symlink_to(ROOT / folder)
    script: list[Block] = []
    expected: dict[int, Block] = {}  # by the number of the block that prints it
    for block in blocks(page):
        if block in NOT_RUN:
            continue
        if block.language == "python":
            name = re.match(r"# (\S+\.py)\n", block.text)
            assert name, f"{block} does not begin with its file's name"
            (tmp_path / name[1]).write_text(block.text)
        elif block.language == "sh":
            script.append(block)
        else:
            expected[len(script) - 1] = block
    text = "\n".join(f"{block.text}\n{WAIT}\necho '{END}'" for block in script)
    printed = run(tmp_path, text, needs=NEEDS.get(page, "")).split(END)
    for number, block in expected.items():
        for line in block.text.strip().splitlines():
            assert is_printed(line, printed[number]), f"{block}: {line!r} is not in {printed[number]!r}"
    if page.endswith("3-hosts.md"):
        weights = re.findall(r"rank \d: weights ([\d.]+)", "".join(printed))
        assert len(weights) == 2
        assert len(set(weights)) == 1


def test_the_steps_are_there() -> None:
    assert len(STEPS) == 4
