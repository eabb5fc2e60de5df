# SPDX-License-Identifier: Apache-2.0
"""All switches: which there are, and how jobs come onto them. Uses `settings` and what it uses."""
