# SPDX-License-Identifier: Apache-2.0
"""Code that docs/frameworks.md shows is part of the examples, which other tests run."""

from __future__ import annotations

import re

import pytest

from tests.examples.runs import EXAMPLES

DOCS = EXAMPLES.parent / "docs" / "frameworks.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)


def test_there_are_some() -> None:
    assert len(BLOCKS) > 5


def lines(code: str) -> str:
    """Return the lines of the code without indentation and empty lines."""
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_of_an_example(block: str) -> None:
    assert any(lines(block) in lines(path.read_text()) for path in EXAMPLES.glob("*.py")), block
