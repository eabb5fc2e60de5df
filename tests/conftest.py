# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests."""

import signal

# A shell that runs us in the background has Ctrl-C ignored, and the programs under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
