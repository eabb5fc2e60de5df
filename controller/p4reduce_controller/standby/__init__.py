# SPDX-License-Identifier: Apache-2.0
"""Several controllers: which serves, and what the others answer. May import all but the commands."""
