# SPDX-License-Identifier: Apache-2.0
"""The command `python -m p4reduce.fastpath`, which prints the compiler flags for C programs that use the library."""

import sys

from p4reduce.fastpath.library import NAME, LibraryError, find, headers

try:
    path = find().absolute()
    if not path.is_file():
        raise LibraryError(f"P4REDUCE_LIBRARY={path}: there is no such file")
    name = "p4reduce" if path.name == NAME else f":{path.name}"
    print(f"-I{headers()} -L{path.parent} -Wl,-rpath,{path.parent} -l{name}")
except LibraryError as error:
    sys.exit(f"python -m p4reduce.fastpath: {error}")
