"""Seconds from the start of `octavo serve` to the first 200 of /health: the median of several starts, warm disk.

python benchmarks/ready_time.py [--runs 5] [--limit 1.5] [--json FILE] [-- FLAGS OF SERVE]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from servers import octavo, write_result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--limit", type=float, help="exit with status 1 if the median is above this")
    parser.add_argument("--json", type=Path)
    parser.add_argument("flags", nargs="*")
    arguments = parser.parse_args()
    with octavo(*arguments.flags):
        pass  # model, libraries and bytecode are in the page cache now
    ready_s = []
    for _ in range(arguments.runs):
        with octavo(*arguments.flags) as server:
            ready_s.append(server.ready_s)
    median = statistics.median(ready_s)
    print(f"ready after {median:.2f} s (median of {len(ready_s)}: {', '.join(f'{s:.2f}' for s in ready_s)})")
    write_result(arguments.json, {"median_s": median, "ready_s": ready_s})
    return int(arguments.limit is not None and median > arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
