# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of the status page and metrics, and the page's files. Uses `settings` and what it uses."""
