# SPDX-License-Identifier: Apache-2.0
"""How fast one core scans, quantises and dequantises, for each instruction set, beside how fast it reads and copies.

Tensors are larger than the caches. What is compared takes turns, so that all meet the same disturbances, and figures
are medians. Reading is that of the fastest of several readers that others have written: the C library's `memchr` for a
byte that is not there, NumPy's `max` of int64 and of float32. Copying is the C library's `memcpy`: like quantising and
dequantising, it reads as much as it writes. GB = 1e9 bytes of float32. In a worker, packets stay in the cache: what a
packet of 256 values costs there is given in nanoseconds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from p4reduce.fastpath.library import library, simd_sets
from p4reduce.fastpath.structures import TYPES, WIRES
from p4reduce.protocol.memory import address

BLOCK_SIZE = 64
PACKET_VALUES = 4 * BLOCK_SIZE
PACKETS = 16
CALLS = 100  # at once of what takes little, as calling from Python takes a while
WORLD_SIZE, EXPONENT, SEED = 8, 130, 1
INT32 = WIRES["int32"]


def medians(actions: Mapping[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Seconds each, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeat + 1):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def tensor(size: int, density: float) -> npt.NDArray[np.float32]:
    """Random values in that share of the blocks: shape (size,)."""
    rng = np.random.default_rng(1)
    data = np.zeros(size, np.float32)
    for start in range(0, size, 1 << 20):
        part = data[start : start + (1 << 20)].reshape(-1, BLOCK_SIZE)
        part[:] = rng.standard_normal(part.shape, np.float32) * (rng.random((len(part), 1)) < density)
    return data


def last_level_cache() -> int:
    """Bytes, as the processor says; 0 where it says nothing."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(path.read_text().strip().removesuffix("K")) << 10 for path in sizes), default=0)


def in_memory(data: npt.NDArray[np.float32], repeat: int) -> list[dict[str, object]]:
    """Return a row for each instruction set: GB/s on tensors that are larger than the caches."""
    c, float32 = library(), TYPES["float32"]
    c_library = ctypes.CDLL(None)
    memchr, memcpy = c_library.memchr, c_library.memcpy
    memchr.argtypes, memchr.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], ctypes.c_void_p
    memcpy.argtypes, memcpy.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], ctypes.c_void_p
    ones = np.full(data.size, 0x01010101, np.int32)
    words = np.zeros(data.size, ">i4")
    exponents = np.empty(data.size // BLOCK_SIZE, np.uint8)
    data_at, words_at, size = address(data), address(words), data.size
    sets = [(simd, simd.encode()) for simd in simd_sets()]
    actions: dict[str, Callable[[], object]] = {
        "read memchr": lambda: memchr(address(ones), 0, ones.nbytes),
        "read max int64": lambda: ones.view(np.int64).max(),
        "read max float32": lambda: data.max(),
        "copy": lambda: memcpy(words_at, data_at, data.nbytes),
    }
    for simd, name in sets:
        actions |= {
            f"scan {simd}": lambda name=name: c.p4reduce_scan(  # type: ignore[misc]
                name, float32, data_at, size, BLOCK_SIZE, address(exponents)
            ),
            f"quantise {simd}": lambda name=name: c.p4reduce_quantise(  # type: ignore[misc]
                name, float32, INT32, data_at, size, WORLD_SIZE, EXPONENT, SEED, 0, words_at
            ),
            f"dequantise {simd}": lambda name=name: c.p4reduce_dequantise(  # type: ignore[misc]
                name, float32, INT32, words_at, size, WORLD_SIZE, EXPONENT, data_at
            ),
        }
    rates = {name: data.nbytes / seconds / 1e9 for name, seconds in medians(actions, repeat).items()}
    reader = max((name for name in rates if name.startswith("read")), key=rates.__getitem__)
    rows: list[dict[str, object]] = []
    for simd, _ in sets:
        row: dict[str, object] = {"simd": simd, "reader": reader.removeprefix("read ")}
        row |= {"read_GB_s": rates[reader], "copy_GB_s": rates["copy"]}
        row["scan_GB_s"] = rates[f"scan {simd}"]
        row["scan_of_read"] = rates[f"scan {simd}"] / rates[reader]
        for what in ("quantise", "dequantise"):
            row[f"{what}_GB_s"] = rates[f"{what} {simd}"]
            row[f"{what}_of_copy"] = rates[f"{what} {simd}"] / rates["copy"]
        rows.append(row)
    return rows


def in_cache(simd: str, repeat: int) -> dict[str, float]:
    """Nanoseconds a packet of 256 values."""
    c, float32, name = library(), TYPES["float32"], simd.encode()
    values = tensor(PACKETS * PACKET_VALUES, 1.0)
    words = np.zeros(values.size, ">i4")
    numbers_of = (WORLD_SIZE, EXPONENT)

    def quantise(count: int) -> None:
        for _ in range(CALLS):
            c.p4reduce_quantise(name, float32, INT32, address(values), count, *numbers_of, SEED, 0, address(words))

    def dequantise() -> None:
        for _ in range(CALLS):
            c.p4reduce_dequantise(name, float32, INT32, address(words), values.size, *numbers_of, address(values))

    actions = {"nothing": lambda: quantise(0), "quantise": lambda: quantise(values.size), "dequantise": dequantise}
    seconds = medians(actions, repeat)
    return {
        f"{what}_packet_ns": (seconds[what] - seconds["nothing"]) / CALLS / PACKETS * 1e9
        for what in ("quantise", "dequantise")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=0, help="size of the tensor; default: 1024, or twice the caches")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--density", type=float, default=1.0, help="share of blocks that are non-zero")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cache = last_level_cache()
    mib = options.mib or max(1024, 2 * cache >> 20)
    rows = in_memory(tensor(mib << 18, options.density), options.repeat)
    for row in rows:
        row |= in_cache(str(row["simd"]), options.repeat)
    if options.json:
        print(json.dumps({"version": 5, "mib": mib, "cache_mib": cache >> 20, "density": options.density,
                          "rows": rows}))  # fmt: skip
        return
    print(f"tensors of {mib} MiB; the last cache has {cache >> 20} MiB")
    for row in rows:
        print("  ".join(f"{key} {value:.3g}" if isinstance(value, float) else str(value) for key, value in row.items()))


if __name__ == "__main__":
    main()
