# SPDX-License-Identifier: Apache-2.0
"""MkDocs hooks that `make docs` uses: they generate reference pages from the sources and resolve links out of docs/."""
