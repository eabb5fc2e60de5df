# SPDX-License-Identifier: Apache-2.0
"""What the compiler says of a program that it cannot run."""


class UnsupportedFeature(ValueError):
    """The program uses something that the embedded switch does not implement; the message names it and its place."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{where}: {what} is not supported by the embedded switch")
        self.what = what
        self.where = where
