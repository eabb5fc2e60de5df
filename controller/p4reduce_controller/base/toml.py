# SPDX-License-Identifier: Apache-2.0
"""TOML files. Errors name the file and the option that names it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from p4reduce.control import diagnostics
from p4reduce_controller.base.schema import SettingsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]


def read_toml(option: str, file: Path, read: Callable[[Path], bytes] = Path.read_bytes) -> dict[str, Any]:
    """Return the contents of the file that the option names. Raises SettingsError."""
    try:
        return dict(tomllib.loads(read(file).decode()))
    except OSError as error:
        raise SettingsError(f"{option}: cannot read {file}: {diagnostics.of_os(error)}") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{option} {file}: {error}") from None
