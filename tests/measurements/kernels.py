# SPDX-License-Identifier: Apache-2.0
"""The speed at which one core scans, quantises and dequantises, compared with its speed of reading and copying.

It is measured for each instruction set. Tensors are larger than the caches. The functions take turns, so that all meet
the same disturbances, and figures are medians. The rate of reading is that of the fastest of several readers that
others have written: the C library's `memchr` for a byte that is not there, NumPy's `max` of int64 and of float32.
Copying is the C library's `memcpy`, which reads as much as it writes, like quantising and dequantising. GB = 1e9 bytes
of float32. In a worker, packets stay in the cache: the cost of a packet of 256 values there is given in nanoseconds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from p4reduce.fastpath.library import library, simd_sets
from p4reduce.fastpath.structures import TYPES, WIRES
from p4reduce.protocol.memory import address

BLOCK_SIZE = 64
PACKET_VALUES = 4 * BLOCK_SIZE
PACKETS = 16
CALLS = 100  # in a row for a short function, since a call from Python takes a while
SCALE, SEED = (8, 130), 1  # world size and exponent
FLOAT32, INT32 = TYPES["float32"], WIRES["int32"]

Kernel = Callable[[int], None]


def medians(actions: Mapping[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Return the median seconds of each action; the actions take turns, and the first turn is not counted."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeat + 1):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def tensor(size: int, density: float) -> npt.NDArray[np.float32]:
    """Return random values in that share of the blocks: shape (size,)."""
    rng = np.random.default_rng(1)
    data = np.zeros(size, np.float32)
    for start in range(0, size, 1 << 20):
        part = data[start : start + (1 << 20)].reshape(-1, BLOCK_SIZE)
        part[:] = rng.standard_normal(part.shape, np.float32) * (rng.random((len(part), 1)) < density)
    return data


def last_level_cache() -> int:
    """Return the size of the last cache in bytes, as the processor reports it; 0 if it reports nothing."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(path.read_text().strip().removesuffix("K")) << 10 for path in sizes), default=0)


def kernels(simd: str, data: npt.NDArray[np.float32], words: npt.NDArray[np.int32]) -> dict[str, Kernel]:
    """Return the kernels of an instruction set, each a function of how many values of `data` it processes."""
    c, name = library(), simd.encode()
    exponents = np.empty(data.size // BLOCK_SIZE, np.uint8)

    def scan(size: int) -> None:
        c.p4reduce_scan(name, FLOAT32, address(data), size, BLOCK_SIZE, address(exponents))

    def quantise(size: int) -> None:
        c.p4reduce_quantise(name, FLOAT32, INT32, address(data), size, *SCALE, SEED, 0, address(words))

    def dequantise(size: int) -> None:
        c.p4reduce_dequantise(name, FLOAT32, INT32, address(words), size, *SCALE, address(data))

    return {"scan": scan, "quantise": quantise, "dequantise": dequantise}


def in_memory(data: npt.NDArray[np.float32], repeat: int) -> list[dict[str, object]]:
    """Return a row for each instruction set: GB/s on tensors that are larger than the caches."""
    c_library = ctypes.CDLL(None)
    memchr, memcpy = c_library.memchr, c_library.memcpy
    memchr.argtypes, memchr.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], ctypes.c_void_p
    memcpy.argtypes, memcpy.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], ctypes.c_void_p
    ones, words = np.full(data.size, 0x01010101, np.int32), np.zeros(data.size, ">i4")
    actions: dict[str, Callable[[], object]] = {
        "read memchr": lambda: memchr(address(ones), 0, ones.nbytes),
        "read max int64": lambda: ones.view(np.int64).max(),
        "read max float32": lambda: data.max(),
        "copy": lambda: memcpy(address(words), address(data), data.nbytes),
    }
    for simd in simd_sets():
        actions |= {f"{what} {simd}": partial(run, data.size) for what, run in kernels(simd, data, words).items()}
    rates = {name: data.nbytes / seconds / 1e9 for name, seconds in medians(actions, repeat).items()}
    reader = max((name for name in rates if name.startswith("read")), key=rates.__getitem__)
    rows: list[dict[str, object]] = []
    for simd in simd_sets():
        row: dict[str, object] = {"simd": simd, "reader": reader.removeprefix("read ")}
        row |= {"read_GB_s": rates[reader], "copy_GB_s": rates["copy"]}
        for what, base in (("scan", "read"), ("quantise", "copy"), ("dequantise", "copy")):
            row[f"{what}_GB_s"] = rates[f"{what} {simd}"]
            row[f"{what}_of_{base}"] = rates[f"{what} {simd}"] / rates[reader if base == "read" else base]
        rows.append(row)
    return rows


def in_cache(simd: str, repeat: int) -> dict[str, float]:
    """Return the nanoseconds that a packet of 256 values costs."""
    values = tensor(PACKETS * PACKET_VALUES, 1.0)
    ours = kernels(simd, values, np.zeros(values.size, ">i4"))

    def often(kernel: Kernel, size: int) -> None:
        for _ in range(CALLS):
            kernel(size)

    actions = {name: partial(often, ours[name], values.size) for name in ("quantise", "dequantise")}
    seconds = medians({"nothing": partial(often, ours["quantise"], 0), **actions}, repeat)
    return {f"{name}_packet_ns": (seconds[name] - seconds["nothing"]) / CALLS / PACKETS * 1e9 for name in actions}


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
        made = {"version": 5, "mib": mib, "cache_mib": cache >> 20, "density": options.density, "rows": rows}
        print(json.dumps(made))
        return
    print(f"tensors of {mib} MiB; the last cache has {cache >> 20} MiB")
    for row in rows:
        print("  ".join(f"{key} {value:.3g}" if isinstance(value, float) else str(value) for key, value in row.items()))


if __name__ == "__main__":
    main()
