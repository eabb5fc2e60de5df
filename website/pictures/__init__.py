# SPDX-License-Identifier: Apache-2.0
"""The pictures of the README: `python -m website.pictures` draws them from docs/figures/ into docs/pictures/.

The same input and the same matplotlib give the same bytes.
"""
