# SPDX-License-Identifier: Apache-2.0
"""What `make docs` makes beside the pages in docs/: pages from the sources, and links that lead out of docs/."""
