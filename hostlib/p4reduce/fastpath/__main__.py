# SPDX-License-Identifier: Apache-2.0
"""`python -m p4reduce.fastpath` prints what a C compiler needs to build programs with the library."""

from p4reduce.fastpath.library import find

folder = find().parent
print(f"-I{folder / 'include'} -L{folder} -Wl,-rpath,{folder} -lp4reduce")
