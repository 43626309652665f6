"""Device and model files, and what the analytic model makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.simulate.analytic import AnalyticCost, Setup, all_reduce_s, gemm_s
from octavo.simulate.device import Device
from octavo.simulate.fields import FileError
from octavo.simulate.shape import ModelShape

FOLDER = Path(__file__).parents[2] / "src/octavo/simulate"
DEVICES = sorted(path.stem for path in (FOLDER / "devices").glob("*.json"))
MODELS = sorted(path.stem for path in (FOLDER / "models").glob("*.json"))


@pytest.mark.parametrize("name", DEVICES)
def test_shipped_devices_load_and_name_their_sources(name: str) -> None:
    device = Device.load(name)
    assert device.flops
    assert set(device.all_reduce.latency_s) == {2, 4, 8}


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3-8b", 8.03),
        ("llama-3-70b", 70.6),
        ("qwen3-0.6b", 0.596),
        ("qwen3-4b", 4.02),
        ("qwen3-8b", 8.19),
        ("qwen3-14b", 14.8),
        ("qwen3-32b", 32.8),
        ("qwen3-30b-a3b", 30.5),
        ("qwen3-235b-a22b", 235),
        ("mixtral-8x7b", 46.7),
        ("mixtral-8x22b", 141),
        ("smollm2-135m", 0.1345),
    ],
)
def test_shipped_models_have_the_published_number_of_weights(name: str, billions: float) -> None:
    assert ModelShape.load(name).parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert name in MODELS


def changed(tmp_path: Path, folder: str, name: str, path: str, value: Any) -> Path:
    content = json.loads((FOLDER / folder / f"{name}.json").read_text())
    at = content
    *outer, last = path.split(".")
    for part in outer:
        at = at[part]
    if value is None:
        del at[last]
    else:
        at[last] = value
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(content, indent=2))
    return file


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("memory_bytes_per_s", 0, "line 4: memory_bytes_per_s is 0; it must be a number from 1e-24 to 1e[+]24"),
        ("memory_bytes_per_s", 1e308, "line 4: memory_bytes_per_s is 1e[+]308; it must be a number from 1e-24 to"),
        ("flops.bf16", 10**400, "line 6: flops.bf16 is 10000+[.]{3}; it must be a number from 1e-24 to 1e[+]24"),
        ("flops.bf16", 5e-324, "flops.bf16 is 5e-324; it must be a number from 1e-24"),
        ("flops.bf16", float("nan"), "flops.bf16 is nan; it must be a number"),
        ("all_reduce.sharpness", float("inf"), "all_reduce.sharpness is inf; it must be a number from 1 to 1e[+]24"),
        ("units", 1 << 60, "units is 1152921504606846976; it must be an integer from 1 to 4294967296"),
        ("memory_bytes_per_s", None, "memory_bytes_per_s is missing"),
        ("flops.bf16", -1, "line 6: flops.bf16 is -1"),
        ("flops", {}, "flops is empty"),
        ("units", 1.5, "units is 1.5"),
        ("gemm.compute", 1.5, "gemm.compute is 1.5; it must be a number from 1e-24 to 1"),
        ("gemm.tile_rows", 0, "gemm.tile_rows is 0"),
        ("attention.memory", "fast", "attention.memory is 'fast'"),
        ("all_reduce.latency_s.2", 0, "all_reduce.latency_s.2 is 0"),
        ("all_reduce.latency_s.many", 1, "all_reduce.latency_s.many is no number of devices"),
        ("all_reduce.latency_s." + "9" * 5000, 1, "99[.]{3} is no number of devices"),
        ("all_reduce.efficiency.4", None, "all_reduce.efficiency.4 is missing"),
        ("sources.gemm", None, "sources.gemm is missing"),
        ("step_overhead_s", True, "step_overhead_s is True"),
    ],
)
def test_a_wrong_device_file_is_one_sentence(tmp_path: Path, path: str, value: Any, words: str) -> None:
    file = changed(tmp_path, "devices", "h100", path, value)
    with pytest.raises(FileError, match=words) as error:
        Device.load(str(file))
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("layers", 0, "layers is 0"),
        ("kv_heads", 5, "kv_heads is 5; it must divide heads, 32"),
        ("experts_per_token", 9, "experts_per_token is 9; the layer has 8 experts"),
        ("tied_head", "no", "tied_head is 'no'"),
        ("context", 1 << 40, "context is 1099511627776; it must be an integer from 1 to 10000000"),
    ],
)
def test_a_wrong_model_file_is_one_sentence(tmp_path: Path, path: str, value: Any, words: str) -> None:
    with pytest.raises(FileError, match=words):
        ModelShape.load(str(changed(tmp_path, "models", "mixtral-8x7b", path, value)))


def test_what_is_no_json_object_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for text, words in (
        ("{\n]", "line 2: this is not JSON"),
        ("[]", "no JSON object"),
        ("\ufffe", "not JSON"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"units": 1' + "0" * 5000 + "}", "an integer of more digits"),
    ):
        file.write_text(text)
        with pytest.raises(FileError, match=words):
            Device.load(str(file))
    with pytest.raises(FileError, match="there is no device 'abacus'; there are a100-80g"):
        Device.load("abacus")
    with pytest.raises(FileError, match="cannot be read"):
        Device.load("none/x.json")


def test_products_are_bound_by_memory_when_few_rows_and_by_arithmetic_when_many() -> None:
    device = Device.load("a100-80g")
    weights = 4096 * 28672
    one, thousands = (gemm_s(device, rows, 28672, 4096, "bf16", 2.0, weights) for rows in (1, 8192))
    assert 2 * weights / 2039e9 < one < 1.3 * 2 * weights / 2039e9
    assert 0.6 < 2 * 8192 * weights / thousands / 312e12 < 0.8


def test_all_reduce_is_latency_then_bandwidth() -> None:
    device = Device.load("h100")
    assert all_reduce_s(device, 8, 1024) == pytest.approx(device.all_reduce.latency_s[8], rel=0.05)
    assert all_reduce_s(device, 8, 1 << 30) > 2 * 7 / 8 * (1 << 30) / 450e9


def test_a_decode_of_8b_on_an_a100_reads_the_weights_once() -> None:
    cost = AnalyticCost(Setup(Device.load("a100-80g"), ModelShape.load("llama-3-8b")))
    alone = cost.seconds(1, 1, 512, 512, 1)
    assert 7.4e-3 < alone < 11e-3  # 15 GB at 2 TB/s, and launches
    assert cost.seconds(32, 32, 32 * 512, 32 * 512, 32) < 1.4 * alone


def test_tensor_parallelism_divides_weights_and_pays_for_all_reduces() -> None:
    device, model = Device.load("h100"), ModelShape.load("llama-3-70b")
    seconds = {degree: AnalyticCost(Setup(device, model, degree)).seconds(8, 8, 4096, 4096, 8) for degree in (2, 4, 8)}
    assert seconds[2] > seconds[4] > seconds[8] > seconds[2] / 4


def test_experts_that_no_token_chose_are_not_read() -> None:
    cost = AnalyticCost(Setup(Device.load("h100"), ModelShape.load("mixtral-8x7b"), 2))
    few, many = cost.seconds(1, 1, 64, 64, 1), cost.seconds(64, 64, 4096, 4096, 64)
    assert many > 2 * few


@pytest.mark.parametrize(
    ("model", "degree", "kind", "words"),
    [
        ("llama-3-8b", 3, "bf16", "degree is 3; NVIDIA A100 SXM 80 GB has figures for 1, 2, 4, 8"),
        ("llama-3-8b", 1, "fp4", "the type is 'fp4'"),
        ("smollm2-135m", 2, "bf16", "has 3 kv heads"),
    ],
)
def test_setups_that_can_not_be_are_refused(model: str, degree: int, kind: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Setup(Device.load("a100-80g"), ModelShape.load(model), degree, kind)


def test_int8_kv_is_read_and_held_at_half_the_bytes() -> None:
    device, model = Device.load("h100"), ModelShape.load("llama-3-8b")
    setups = {kv: Setup(device, model, kv_type=kv) for kv in ("bf16", "int8")}
    assert setups["int8"].kv_tokens == pytest.approx(setups["bf16"].kv_tokens * 256 / 132, rel=1e-4)
    seconds = {kv: AnalyticCost(setup) for kv, setup in setups.items()}
    grown = {
        kv: cost.seconds(64, 64, 2_000_000, 2_000_000, 64) - cost.seconds(64, 64, 1_000_000, 1_000_000, 64)
        for kv, cost in seconds.items()
    }
    assert grown["int8"] == pytest.approx(grown["bf16"] * 132 / 256, rel=1e-3)
    with pytest.raises(ValueError, match="the KV type is 'fp4'; supported are f32, bf16, f16, int8"):
        Setup(device, model, kv_type="fp4")


def test_weights_that_do_not_fit_are_refused() -> None:
    setup = Setup(Device.load("l4"), ModelShape.load("llama-3-70b"))
    with pytest.raises(ValueError, match=r"needs 141\.1 GB for weights"):
        _ = setup.kv_tokens
