# SPDX-License-Identifier: Apache-2.0
"""How fast one core scans, quantises and dequantises, for each instruction set, beside how fast it reads memory.

    python bench/kernels.py [--mib 256] [--repeat 11] [--json]

Reading is measured with the C library's `memchr` for a byte that is not there, in turns with the scan, so that both
meet the same disturbances; figures are medians. GB = 1e9 bytes of float32.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable

import numpy as np

from p4reduce.fastpath import numbers
from p4reduce.fastpath.library import address, library
from p4reduce.fastpath.structures import TYPES

BLOCK_SIZE = 64
PACKET_VALUES = 4 * BLOCK_SIZE
PACKETS = 16


def medians(actions: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Seconds each, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeat + 1):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="size of the tensor")
    parser.add_argument("--repeat", type=int, default=11)
    parser.add_argument("--density", type=float, default=1.0, help="of blocks")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    rng = np.random.default_rng(1)
    size = options.mib << 18
    data = np.zeros(size, np.float32)
    for start in range(0, size, 1 << 20):
        part = data[start : start + (1 << 20)].reshape(-1, BLOCK_SIZE)
        part[:] = rng.standard_normal(part.shape, np.float32) * (rng.random((len(part), 1)) < options.density)
    exponents = np.empty(size // BLOCK_SIZE, np.uint8)
    ones = np.full(size, 0x01010101, np.int32)
    # Values that stay in the cache, as those of a packet do; many at once, as calling from Python takes a while.
    few = data[: PACKETS * PACKET_VALUES].copy()
    wire = np.empty(few.size, ">i4")
    few_at, wire_at = address(few), address(wire)

    c, float32 = library(), TYPES["float32"]
    memchr = ctypes.CDLL(None).memchr
    memchr.argtypes, memchr.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], ctypes.c_void_p
    rows = []
    for simd in numbers.simd_sets():
        name = simd.encode()

        def scan(name: bytes = name) -> None:
            c.p4reduce_scan(name, float32, address(data), size, BLOCK_SIZE, address(exponents))

        def quantise(name: bytes = name) -> None:
            for _ in range(100):
                c.p4reduce_quantise(name, float32, few_at, few.size, 4, 130, wire_at)

        def dequantise(name: bytes = name) -> None:
            for _ in range(100):
                c.p4reduce_dequantise(name, float32, wire_at, few.size, 4, 130, few_at)

        def nothing(name: bytes = name) -> None:
            for _ in range(100):
                c.p4reduce_quantise(name, float32, few_at, 0, 4, 130, wire_at)

        memory = medians({"read": lambda: memchr(address(ones), 0, ones.nbytes), "scan": scan}, options.repeat)
        cached = medians({"quantise": quantise, "dequantise": dequantise, "nothing": nothing}, options.repeat)
        row = {
            "simd": simd,
            "read_GB_s": data.nbytes / memory["read"] / 1e9,
            "scan_GB_s": data.nbytes / memory["scan"] / 1e9,
            "scan_share_of_read": memory["read"] / memory["scan"],
            "quantise_packet_ns": (cached["quantise"] - cached["nothing"]) / 100 / PACKETS * 1e9,
            "dequantise_packet_ns": (cached["dequantise"] - cached["nothing"]) / 100 / PACKETS * 1e9,
        }
        rows.append(row)
        if not options.json:
            print("  ".join(f"{key} {value:.3g}" if isinstance(value, float) else value for key, value in row.items()))
    if options.json:
        print(json.dumps({"version": 1, "mib": options.mib, "density": options.density, "rows": rows}))


if __name__ == "__main__":
    main()
