"""The analytic model against published measurements that nothing is fitted to."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from octavo.simulate.analytic import all_reduce_s, gemm_s
from octavo.simulate.device import Device

DATA = Path(__file__).parents[2].parent / "shared/data/vidur"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the published profiles are not here")


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("tokens", [(1, 16), (17, 64), (65, 256), (257, 1024), (1025, 4096)])
@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_products_of_llama_2_70b_on_h100(tokens: tuple[int, int], degree: int) -> None:
    device, errors = Device.load("h100"), []
    for row in rows("compute_h100_meta-llama_Llama-2-70b-hf_mlp.csv"):
        count = int(row["num_tokens"])
        if int(row["num_tensor_parallel_workers"]) != degree or not tokens[0] <= count <= tokens[1]:
            continue
        for name, columns, depth in (
            ("attn_pre_proj", 10240 // degree, 8192),
            ("attn_post_proj", 8192, 8192 // degree),
            ("mlp_up_proj", 57344 // degree, 8192),
            ("mlp_down_proj", 8192, 28672 // degree),
        ):
            measured_s = float(row[f"time_stats.{name}.median"]) * 1e-3
            errors.append(abs(gemm_s(device, count, columns, depth, "bf16", 2.0, columns * depth) / measured_s - 1))
    assert len(errors) >= 20
    assert np.median(errors) < 0.15


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_all_reduces_on_h100(degree: int) -> None:
    device = Device.load("h100")
    errors = [
        abs(all_reduce_s(device, degree, int(row["size"])) / (float(row["time_stats.all_reduce.median"]) * 1e-3) - 1)
        for row in rows("network_h100_dgx_all_reduce.csv")[1::2]
        if int(row["num_workers"]) == degree
    ]
    assert np.median(errors) < 0.15
