"""W2 against llama.cpp's server: 128 ShareGPT requests, 32 in flight, through HTTP, engines taking turns.

    python benchmarks/w2_vs_llamacpp.py [--rounds 3] [--native | --llama-server PATH] [--json FILE]

A selection of side_by_side.py with a verdict: llama.cpp serves the shipped file (Q4_1, a slow path there) and the same
weights re-rounded to Q4_0, its best format. The exit status is 1 unless Octavo makes at least 1.5 times
the output tokens a second of the first, and as many as the second; ratios to the AVX2-only wheel are divided by 1.4.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import side_by_side
from sidebyside.results import Results

WORKLOAD, METRIC = "W2-32", "output_tokens_per_s"
FLOORS = {"llamacpp": 1.5, "llamacpp-q4_0": 1.0}


def main() -> int:
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        words = sys.argv[1:] if "--json" in sys.argv else [*sys.argv[1:], "--json", f"{scratch}/w2.json"]
        sys.argv[1:] = [*words, "--workloads", WORKLOAD, "--peers", ",".join(FLOORS)]
        status = side_by_side.main()
        return status or verdict(Results.read(Path(words[words.index("--json") + 1])))


def verdict(results: Results) -> int:
    """Print each ratio and whether it passes; 1 if one does not."""
    status = 0
    for peer, floor in FLOORS.items():
        ratio = results.ratio(peer, WORKLOAD, METRIC, higher=True)
        good = ratio is not None and ratio >= floor
        status |= not good
        shown = "not measured" if ratio is None else f"{ratio:.2f}"
        print(f"{'pass' if good else 'FAIL'}: {shown} times {results.label(peer)} (must be at least {floor:g})")
    return status


if __name__ == "__main__":
    sys.exit(main())
