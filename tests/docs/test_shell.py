# SPDX-License-Identifier: Apache-2.0
"""Blocks for the shell, each run by itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.document_blocks import Block, commands, every

from .session import certify, furnish, run
from .ways import Shell, way

pytestmark = [pytest.mark.slow, pytest.mark.root]

RUN = [(block, found) for block in every("sh") if isinstance(found := way(block), Shell)]
_AND_THE_OTHER = re.compile(r"^(.*)RANK=0 (.*?) +# and RANK=1 in another$", re.MULTILINE)


@pytest.mark.parametrize(("block", "how"), RUN, ids=[str(block) for block, _ in RUN])
def test_it_runs(block: Block, how: Shell, tmp_path: Path) -> None:
    furnish(tmp_path)
    if ".pem" in block.text:
        certify(tmp_path, how.name)
    text = "\n".join(line for line in commands(block) if not how.left_out or how.left_out not in line)
    if _AND_THE_OTHER.search(block.text):
        text = _AND_THE_OTHER.sub(r"\1RANK=0 \2 &\n\1RANK=1 \2", block.text)
    for script in text.splitlines() if how.one_by_one else [text]:
        run(tmp_path, f"{how.before}\n{script}", how.addresses, how.name, how.needs)
