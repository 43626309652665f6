"""Analytic GEMM and all-reduce times against the published measurements of microsoft/vidur, by range of sizes.

    python benchmarks/vidur_errors.py [--data ../shared/data/vidur] [--limit 0.15]

The device files' curves are fitted to part of these rows (A100: 1 and 4 GPUs; H100: Llama 2 7B; all-reduce: every
second row, which is not shown); the other rows are marked as held out. The exit status is 1 if the median error of a
held-out range is above the limit.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from octavo.simulate.analytic import all_reduce_s, gemm_s
from octavo.simulate.device import Device

FILES = (
    ("a100-80g", "compute_a100_meta-llama_Meta-Llama-3-8B_mlp.csv", {1, 4}),
    ("h100", "compute_h100_meta-llama_Llama-2-7b-hf_mlp.csv", {1, 2, 4, 8}),
    ("h100", "compute_h100_meta-llama_Llama-2-70b-hf_mlp.csv", set()),
)
TOKENS = ((1, 16), (17, 64), (65, 256), (257, 1024), (1025, 4096), (4097, 1 << 20))
BYTES = ((1, 1 << 20), ((1 << 20) + 1, 8 << 20), ((8 << 20) + 1, 1 << 30))


def gemms(path: Path, device: Device) -> list[tuple[int, int, float]]:
    """(tokens, GPUs, predicted / measured) of the four products of a layer."""
    found = []
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            degree, tokens = int(row["num_tensor_parallel_workers"]), int(row["num_tokens"])
            heads, kv_heads, hidden, ffn = (
                int(row[name]) for name in ("n_head", "n_kv_head", "n_embd", "n_expanded_embd")
            )
            head = hidden // heads
            for name, columns, depth in (
                ("attn_pre_proj", (heads + 2 * kv_heads) * head // degree, hidden),
                ("attn_post_proj", hidden, heads * head // degree),
                ("mlp_up_proj", 2 * ffn // degree, hidden),
                ("mlp_down_proj", hidden, ffn // degree),
            ):
                measured_s = float(row[f"time_stats.{name}.median"]) * 1e-3
                predicted_s = gemm_s(device, tokens, columns, depth, "bf16", 2.0, columns * depth)
                found.append((tokens, degree, predicted_s / measured_s))
    return found


def all_reduces(path: Path, device: Device) -> list[tuple[int, int, float]]:
    """(bytes, GPUs, predicted / measured) of the rows that nothing is fitted to."""
    with path.open(encoding="utf-8") as file:
        rows = [
            (size, workers, all_reduce_s(device, workers, size) / (float(row["time_stats.all_reduce.median"]) * 1e-3))
            for row in csv.DictReader(file)
            for size, workers in [(int(row["size"]), int(row["num_workers"]))]
        ]
    return rows[1::2]


def report(
    title: str, rows: list[tuple[int, int, float]], ranges: tuple[tuple[int, int], ...], fitted: Callable[[int], bool]
) -> list[float]:
    """Print a table; returns the held-out medians."""
    print(f"\n{title}\n{'sizes':>22} {'GPUs':>5} {'rows':>6} {'median':>8} {'p90':>8} {'bias':>8}")
    held_out = []
    table = np.array(rows)
    for low, high in ranges:
        for degree in sorted({int(value) for value in table[:, 1]}):
            chosen = table[(table[:, 0] >= low) & (table[:, 0] <= high) & (table[:, 1] == degree), 2] - 1
            if not len(chosen):
                continue
            median = float(np.median(np.abs(chosen)))
            mark = "" if fitted(degree) else " held out"
            print(
                f"{low:>10}-{high:<11} {degree:>5} {len(chosen):>6} {median:>8.1%} "
                f"{np.percentile(np.abs(chosen), 90):>8.1%} {np.median(chosen):>+8.1%}{mark}"
            )
            if not fitted(degree):
                held_out.append(median)
    return held_out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/vidur"))
    parser.add_argument("--limit", type=float, default=0.15)
    arguments = parser.parse_args()
    medians = []
    for device, name, fitted in FILES:
        rows = gemms(arguments.data / name, Device.load(device))
        medians += report(f"{name} (tokens)", rows, TOKENS, fitted.__contains__)
    rows = all_reduces(arguments.data / "network_h100_dgx_all_reduce.csv", Device.load("h100"))
    medians += report("all-reduce, H100 DGX (bytes)", rows, BYTES, lambda degree: False)
    print(f"\nworst held-out median: {max(medians):.1%} (limit {arguments.limit:.0%})")
    return int(max(medians) > arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
