# SPDX-License-Identifier: Apache-2.0
"""Every block of code in the documents is run by some test, or listed with the reason; and none is misspelt."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
import sys
from functools import cache
from itertools import groupby
from typing import Any

import pytest
import yaml

from tests.support.document_blocks import PAGES, ROOT, Block, blocks, commands, every
from website import commands as declared

from .ways import RULES, Elsewhere, way

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CODE = every("python", "sh", "c", "toml", "json", "yaml", "console")


def test_every_block_is_run_or_listed() -> None:
    unknown = [str(block) for block in CODE if block.language not in ("toml", "json", "yaml") and way(block) is None]
    assert not unknown, f"tests/docs/ways.py says of no rule for {', '.join(unknown)}"


def test_every_rule_is_of_a_block() -> None:
    used = {id(way(block)) for block in CODE}
    assert [(page, text) for page, text, found in RULES if id(found) not in used] == []


def test_tests_that_run_blocks_are_there() -> None:
    named = {found.test for _, _, found in RULES if isinstance(found, Elsewhere)}
    assert [test for test in named if not (ROOT / test).is_file()] == []


def test_languages_are_known() -> None:
    """A block without one is no code, as of a program's output."""
    named = {block.language for page in PAGES for block in blocks(page)}
    assert named - {"", "text", "python", "sh", "c", "toml", "json", "yaml", "console"} == set()


@pytest.mark.parametrize("block", CODE, ids=str)
def test_it_can_be_read(block: Block) -> None:
    if block.language == "python":
        ast.parse(block.text)
    elif block.language == "sh":
        done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
        assert not done.stderr
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "yaml":
        yaml.safe_load(block.text)
    elif block.language == "console":
        assert block.text.startswith("$ "), "a terminal's block shows a command and what it says; commands alone are sh"


@cache
def parsed(name: str) -> Any:
    return declared.command(name)


def said(block: Block) -> list[list[str]]:
    """Return the arguments of each call of p4reduce."""
    found: list[list[str]] = []
    for line in commands(block):
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        for is_operator, call in groupby(words, key=lambda word: set(word) <= set("();<>|&")):
            arguments = list(call)
            if not is_operator and "p4reduce" in arguments:
                found.append(arguments[arguments.index("p4reduce") + 1 :])
    return found


def wrong(arguments: list[str]) -> str:
    """Return which commands and options of a call do not exist, or an empty string for a right call."""
    if not arguments or arguments[0].startswith("-"):
        return ""
    name, *rest = arguments
    if name not in declared.COMMANDS:
        return f"there is no command {name}"
    if name == "exec":
        rest = rest[: rest.index("--")]
    command = parsed(name)
    while getattr(command, "commands", None) and rest and not rest[0].startswith("-"):
        name, *rest = rest
        if name not in command.commands:
            return f"there is no command {name}"
        command = command.commands[name]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = [word.partition("=")[0] for word in rest if word.startswith("--") and word != "--help"]
    return ", ".join(f"{name} has no option {one}" for one in given if one not in options)


@pytest.mark.parametrize("block", [block for block in every("sh") if "p4reduce " in block.text], ids=str)
def test_its_commands_have_these_options(block: Block) -> None:
    assert [found for arguments in said(block) if (found := wrong(arguments))] == []


def test_a_misspelt_option_is_seen() -> None:
    lines = ["p4reduce switch --traget 'a;b' &", "X=1 p4reduce topo runs star  # and", "p4reduce status|tee --foo"]
    found = [wrong(call) for call in said(Block("", 1, "sh", "\n".join(lines)))]
    assert found == ["switch has no option --traget", "there is no command runs", ""]
