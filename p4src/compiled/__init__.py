# SPDX-License-Identifier: Apache-2.0
"""The compiled pipeline: `p4reduce.json` for BMv2, sim and native, `p4info.txtpb` for P4Runtime. Made by `make p4`.

Here the build for links of MTU 1,500, in `jumbo` that for 9,000.
"""
