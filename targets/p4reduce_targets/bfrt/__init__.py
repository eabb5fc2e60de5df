# SPDX-License-Identifier: Apache-2.0
"""A Tofino as a data plane: the client of BF Runtime, the interface of the SDE's `bf_switchd`.

Facts about the server come from the sources of open-p4studio, version 9.13.4, folder pkgsrc/bf-drivers/src/bf_rt.
"""
