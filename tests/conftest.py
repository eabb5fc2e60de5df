# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests."""

import os
import signal

# A shell that runs us in the background has Ctrl-C ignored, and the programs under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Where there is no GPU, Triton's interpreter runs the kernels. It must be told before Triton is first imported.
if not os.path.exists("/dev/nvidiactl"):
    os.environ["TRITON_INTERPRET"] = "1"
