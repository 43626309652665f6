"""Seconds from the start of `octavo serve` to the first 200 of /health: the median of several starts, warm disk.

    python benchmarks/ready_time.py [--runs 5] [--limit 1.5] [--geometry llama-3-8b:q4_0 | --weights PATH] [-- FLAGS]

--geometry loads a file of random weights (geometries.py; llama-3-8b:q4_0 is 4.2 GB), --weights a GGUF file or a folder
of safetensors, and then the engine's peak memory at that moment is shown beside the weights' size: they are packed a
matrix at a time, so it should be little more. --json FILE keeps the figures.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from geometries import geometry_file
from servers import octavo, write_result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--limit", type=float, help="exit with status 1 if the median is above this")
    parser.add_argument("--geometry", metavar="NAME:FORMAT", help="random weights instead of the default model")
    parser.add_argument(
        "--weights", type=Path, metavar="PATH", help="a GGUF file or a folder instead of the default model"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("flags", nargs="*")
    arguments = parser.parse_args()
    flags, found = list(arguments.flags), {}
    weights = geometry_file(arguments.geometry) if arguments.geometry else arguments.weights
    if weights is not None:
        flags += ["--model", str(weights)]
        files = weights.glob("*.safetensors") if weights.is_dir() else [weights]
        found["file_bytes"] = sum(file.stat().st_size for file in files)
    with octavo(*flags):
        pass  # model, libraries and bytecode are in the page cache now
    ready_s, peak_bytes = [], []
    for _ in range(arguments.runs):
        with octavo(*flags) as server:
            ready_s.append(server.ready_s)
            peak_bytes.append(_peak_bytes(server.child_pid()))
    median, peak = statistics.median(ready_s), max(peak_bytes)
    print(f"ready after {median:.2f} s (median of {len(ready_s)}: {', '.join(f'{s:.2f}' for s in ready_s)})")
    if "file_bytes" in found:
        found["peak_bytes"] = peak
        held, size = peak / 1e9, found["file_bytes"] / 1e9
        print(f"the engine's peak is {held:.2f} GB for weights of {size:.2f} GB: {held / size:.3f} times")
    write_result(arguments.json, {"median_s": median, "ready_s": ready_s, **found})
    return int(arguments.limit is not None and median > arguments.limit)


def _peak_bytes(pid: int) -> int:
    """Most memory that the process has had resident so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))


if __name__ == "__main__":
    sys.exit(main())
