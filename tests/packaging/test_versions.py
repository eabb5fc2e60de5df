# SPDX-License-Identifier: Apache-2.0
"""One version in all places that name it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def found(path: str, pattern: str) -> list[str]:
    return re.findall(pattern, (ROOT / path).read_text(), re.MULTILINE)


def test_all_places_name_one_version() -> None:
    (version,) = found("pyproject.toml", r'^version = "(.*)"')
    assert found("pyproject.toml", r'"p4reduce-bench==(.*)"') == [version]
    assert found("bench/pyproject.toml", r'^version = "(.*)"') == [version]
    assert found("bench/pyproject.toml", r'"p4reduce\[.*\]==([^"]*)"') == [version]
    assert found("CITATION.cff", r"^version: (.*)") == [version]
    for folder in ("controller", "switch"):
        assert found(f"deploy/kubernetes/{folder}/kustomization.yaml", r"newTag: ([\d.]+)") == [version]
    for path in (
        "deploy/kubernetes/training/jobset.yaml",
        "deploy/kubernetes/training/pytorchjob.yaml",
        "docs/deploying.md",
    ):
        assert set(found(path, r"registry\.example/[\w-]+:([\d.]+)")) == {version}
    unreleased, newest, *_ = found("CHANGELOG.md", r"^## (\S+)")
    assert (unreleased, newest) == ("Unreleased", version)
