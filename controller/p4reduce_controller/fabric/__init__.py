# SPDX-License-Identifier: Apache-2.0
"""All switches: which there are, and how jobs come onto them. May import `settings` and what that may import."""
