# SPDX-License-Identifier: Apache-2.0
"""The command `python -m p4reduce_targets`, which is the same as `p4reduce switch`."""

import typer

from p4reduce_targets.cli import switch


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(switch)
    app(prog_name="p4reduce switch")


if __name__ == "__main__":
    main()
