# SPDX-License-Identifier: Apache-2.0
"""The compiled pipeline: `p4reduce.json` for BMv2 and sim, `p4info.txtpb` for P4Runtime. Made by `make p4`."""
