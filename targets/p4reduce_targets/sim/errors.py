# SPDX-License-Identifier: Apache-2.0
"""The error for programs that sim cannot run."""


class UnsupportedFeature(ValueError):
    """A feature of the program that the embedded switch lacks; the message says which, and where it is used."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{where}: {what} is not supported by the embedded switch")
        self.what = what
        self.where = where
