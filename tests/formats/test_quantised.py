"""Quantised safetensors mean what their authors' definitions say; what is not supported is one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.quantised_models import LAYOUTS, Layout, Stored, gptq, int_quantized, write_folder

from octavo.formats.blocks import dequantize
from octavo.formats.errors import ModelFileError
from octavo.formats.quantised.folder import QuantisedFolder
from octavo.formats.safetensors import SafetensorsFolder

ROWS, WIDTH = 200, 320


def module(layout: Layout, rows: int = ROWS, width: int = WIDTH) -> tuple[Stored, np.ndarray]:
    return layout.make(np.random.default_rng(5), rows, width)


def opened(folder: Path, parts: Stored, config: Any) -> QuantisedFolder:
    write_folder(folder, {f"m.{part}": value for part, value in parts.items()}, config)
    found = QuantisedFolder.over(SafetensorsFolder.open(folder))
    assert isinstance(found, QuantisedFolder)
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_values_are_those_of_the_definition(tmp_path: Path, name: str) -> None:
    layout = LAYOUTS[name]
    parts, values = module(layout)
    folder = opened(tmp_path, parts, layout.config)
    assert folder.names == ["m.weight"]
    tensor = folder.tensor("m.weight")
    assert (tensor.type.name, tensor.shape) == (layout.type, (ROWS, WIDTH))
    assert np.array_equal(dequantize(tensor), values)
    folder.release("m.weight")
    assert np.array_equal(dequantize(folder.tensor("m.weight")), values)  # made anew


@pytest.mark.parametrize("name", ["gptq-32", "awq-64", "packed-64-zeros", "int8-rows", "fp8-blocks"])
def test_a_matrix_of_more_than_one_chunk(tmp_path: Path, name: str) -> None:
    """2^20 elements are made at a time."""
    layout = LAYOUTS[name]
    parts, values = module(layout, 680, 1600)
    assert np.array_equal(dequantize(opened(tmp_path, parts, layout.config).tensor("m.weight")), values)


@pytest.mark.parametrize("name", LAYOUTS)
def test_samples_of_some_rows_are_theirs(tmp_path: Path, name: str) -> None:
    """So that one of several matrices in a module tells it from others, too."""
    layout = LAYOUTS[name]
    parts, _ = module(layout)
    main = next(iter(parts))
    dtype, stored = parts[main]
    codes = stored.copy()
    if name.startswith(("gptq", "awq")):
        codes[:, codes.shape[1] * 4 // 5 :] ^= 1
    else:
        codes[ROWS * 4 // 5 :] ^= 1
    first, second = (
        opened(tmp_path / folder, {**parts, main: (dtype, values)}, layout.config).tensor("m.weight")
        for folder, values in (("first", stored), ("second", codes))
    )
    same, other = slice(0, ROWS // 5), slice(ROWS * 4 // 5, ROWS)
    assert first.some_rows(same, (40, WIDTH)).sample(64) == second.some_rows(same, (40, WIDTH)).sample(64)
    assert first.some_rows(other, (40, WIDTH)).sample(64) != second.some_rows(other, (40, WIDTH)).sample(64)
    of_rows = [one.some_rows(slice(ROWS // 5, ROWS), (160, WIDTH)) for one in (first, second)]
    nested = [one.some_rows(slice(ROWS * 3 // 5, None), (40, WIDTH)).sample(64) for one in of_rows]
    assert nested == [one.some_rows(other, (40, WIDTH)).sample(64) for one in (first, second)]


@pytest.mark.parametrize("part", ["input_scale", "input_zero_point", "input_global_scale"])
def test_what_is_not_used_is_not_looked_at(tmp_path: Path, part: str) -> None:
    layout = LAYOUTS["int8-rows"]
    parts, values = module(layout)
    plain = opened(tmp_path / "plain", parts, layout.config).tensor("m.weight")
    for dtype, array in (("F64", np.ones(1)), ("BOOL", np.ones(1, np.bool_)), ("F32", np.ones(1, np.float32))):
        folder = opened(tmp_path / dtype, {**parts, part: (dtype, array)}, layout.config)
        assert folder.names == ["m.weight"]
        assert folder.tensor("m.weight").sample(4096) == plain.sample(4096)
        assert np.array_equal(dequantize(folder.tensor("m.weight")), values)
        folder.release("m.weight")


def test_scales_in_f32_are_rounded_to_f16(tmp_path: Path) -> None:
    layout = int_quantized("F32")
    parts, values = module(layout)
    found = dequantize(opened(tmp_path, parts, layout.config).tensor("m.weight"))
    assert not np.array_equal(found, values)
    assert np.all(np.abs(found - values) <= np.abs(values) * 2.0**-11)


def test_every_number_of_fp8(tmp_path: Path) -> None:
    bits = np.array([bits for bits in range(256) if bits & 127 != 127], np.uint8).reshape(1, -1)
    parts: Stored = {"weight": ("F8_E4M3", bits), "weight_scale": ("F32", np.ones(1, np.float32))}
    found = dequantize(opened(tmp_path, parts, LAYOUTS["fp8-whole"].config).tensor("m.weight"))[0]
    assert (found.max(), found.min(), found[1]) == (448.0, -448.0, 2.0**-9)
    assert np.array_equal(np.sort(found[:127]), found[:127])
    assert np.array_equal(found[127:], -found[:127])


def test_what_is_not_quantised_is_seen_as_it_is(tmp_path: Path) -> None:
    layout = LAYOUTS["awq-32"]
    parts, _ = module(layout)
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    folder = opened(tmp_path, {**parts, "bias": ("F32", plain[0]), "norm.weight": ("F32", plain)}, layout.config)
    assert sorted(folder.names) == ["m.bias", "m.norm.weight", "m.weight"]
    assert np.array_equal(dequantize(folder.tensor("m.norm.weight")), plain)
    folder.release("m.norm.weight")
    assert "m.weight" in folder
    assert "m.qweight" not in folder
    with pytest.raises(ModelFileError, match=r"tensor m\.qweight is missing"):
        folder.tensor("m.qweight")


def test_a_part_of_another_layout_stays_visible(tmp_path: Path) -> None:
    """So that filling the model's slots names it as left over."""
    layout = LAYOUTS["awq-32"]
    parts, _ = module(layout)
    folder = opened(tmp_path, {**parts, "g_idx": ("I32", np.zeros(WIDTH, np.int32))}, layout.config)
    assert sorted(folder.names) == ["m.g_idx", "m.weight"]


def test_old_gptq_folders_have_a_file_for_it(tmp_path: Path) -> None:
    layout = LAYOUTS["gptq-64-zeros"]
    parts, values = module(layout)
    write_folder(tmp_path, {f"m.{part}": value for part, value in parts.items()}, None)
    said = {"bits": 4, "group_size": 64, "desc_act": False, "sym": False}
    (tmp_path / "quantize_config.json").write_text(json.dumps(said))
    assert np.array_equal(dequantize(QuantisedFolder.over(SafetensorsFolder.open(tmp_path)).tensor("m.weight")), values)
    (tmp_path / "quantize_config.json").write_text(json.dumps({**said, "bits": 2}))
    with pytest.raises(ModelFileError, match=r"quantize_config\.json: bits is 2; supported: 4, 8"):
        QuantisedFolder.over(SafetensorsFolder.open(tmp_path))


def test_no_quantisation_no_change(tmp_path: Path) -> None:
    folder = SafetensorsFolder.open(write_folder(tmp_path, {"w": ("F32", np.ones((1, 1), np.float32))}, None))
    assert QuantisedFolder.over(folder) is folder


_PACKED, _FP8 = LAYOUTS["packed-32"].config, LAYOUTS["fp8-blocks"].config


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("gptq", "quantization_config is 'gptq'; it must be an object"),
        ({"bits": 4}, "quant_method is None; supported: gptq, awq, compressed-tensors, fp8 and mxfp4"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            "quant_method is 'bitsandbytes'; supported: gptq, awq",
        ),
        ({**gptq(4, 32, True).config, "bits": 3}, "bits is 3; supported: 4, 8"),
        ({**gptq(4, 32, True).config, "bits": True}, "bits is True"),
        ({**gptq(4, 32, True).config, "group_size": 16}, "group_size is 16; supported: -1"),
        ({**gptq(4, 32, True).config, "group_size": "all"}, "group_size is 'all'"),
        ({**gptq(4, 32, True).config, "checkpoint_format": "marlin"}, "is 'marlin'; supported: gptq, gptq_v2"),
        ({"quant_method": "awq", "bits": 8}, "bits is 8; supported: 4"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version is 'gemv'; supported: gemm"),
        ({**_PACKED, "format": "marlin-24"}, "format is 'marlin-24'; supported: pack-quantized, int-quantized"),
        ({**_PACKED, "kv_cache_scheme": {"num_bits": 8}}, r"kv_cache_scheme is \{'num_bits': 8\}; supported: none"),
        ({**_PACKED, "transform_config": {"a": 1}}, "transform_config is"),
        ({**_PACKED, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config is .* dense weights"),
        ({**_PACKED, "config_groups": [1]}, r"config_groups is \[1\]; supported: an object of objects"),
        ({**_PACKED, "config_groups": {"a": {"weights": None}}}, "supported: groups that quantise weights"),
        ({**_FP8, "fmt": "e5m2"}, "fmt is 'e5m2'; supported: e4m3"),
        ({**_FP8, "weight_block_size": [128]}, r"weight_block_size is \[128\]; supported: two whole numbers"),
        ({**_FP8, "weight_block_size": [0, 128]}, "two whole numbers"),
    ],
)
def test_variants_that_are_not_supported(tmp_path: Path, config: Any, problem: str) -> None:
    write_folder(tmp_path, {"w": ("F32", np.ones((1, 1), np.float32))}, config)
    with pytest.raises(ModelFileError, match=problem) as error:
        QuantisedFolder.over(SafetensorsFolder.open(tmp_path))
    assert str(error.value).startswith(str(tmp_path / "config.json"))


def _without(part: str) -> Any:
    return lambda parts: {name: value for name, value in parts.items() if name != part}


def _with(part: str, dtype: str, array: np.ndarray) -> Any:
    return lambda parts: {**parts, part: (dtype, array)}


_UNEVEN = np.minimum(np.arange(WIDTH, dtype=np.int32) // 31, 9)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("gptq-32", _without("scales"), r"tensor m\.scales is missing"),
        ("gptq-32", _without("qzeros"), r"tensor m\.qzeros is missing"),
        ("gptq-32", _with("g_idx", "I32", _UNEVEN), r"m\.g_idx does not put 320 inputs into groups of 32"),
        (
            "gptq-32",
            _with("scales", "F16", np.ones((3, ROWS), np.float16)),
            r"scales has shape \[3, 200\].*\[10, 200\]",
        ),
        ("gptq-32", _with("qzeros", "I32", np.ones((10, 3), np.int32)), r"qzeros has shape \[10, 3\].*\[10, 25\]"),
        ("gptq-32", _with("qzeros", "F32", np.ones((10, 25), np.float32)), "qzeros has type F32 .* expected are I32"),
        ("gptq-8bit", _with("qzeros", "I32", np.full((5, 50), 5, np.int32)), "8 bits with zero points"),
        (
            "gptq-32",
            _with("scales", "F32", np.full((10, ROWS), 1e6, np.float32)),
            "a scale of 1e.06; the limit is 65504",
        ),
        ("gptq-32", _with("scales", "F32", np.full((10, ROWS), np.nan, np.float32)), "a scale that is not finite"),
        ("gptq-32", _with("scales", "I32", np.ones((10, ROWS), np.int32)), "scales has type I32; scales must be F32"),
        (
            "awq-32",
            _with("qweight", "I32", np.ones((40, 25), np.int32)),
            "has 40 inputs in groups of 32; .* multiples of 32",
        ),
        ("packed-32", _with("weight_shape", "I64", np.array([ROWS, 1000])), r"weight_packed has shape \[200, 40\]"),
        (
            "packed-32",
            _with("weight_scale", "F32", np.ones((ROWS, 3), np.float32)),
            r"weight_scale has shape \[200, 3\]",
        ),
        ("packed-32", _with("weight_scale", "F32", np.ones((ROWS, 20), np.float32)), "320 inputs in groups of 16"),
        ("int8-rows", _with("weight_zero_point", "I8", np.ones((ROWS, 1), np.int8)), "weight_zero_point is not zero"),
        ("int8-rows", _without("weight_scale"), r"tensor m\.weight_scale is missing"),
        ("fp8-blocks", _with("weight_scale_inv", "F32", np.ones((2, 2), np.float32)), r"has shape \[2, 2\].*\(2, 3\)"),
        (
            "fp8-whole",
            _with("weight_scale", "F32", np.ones((2, 3), np.float32)),
            r"has shape \[2, 3\]; expected are one",
        ),
        (
            "fp8-whole",
            _with("weight", "F8_E4M3", np.full((4, 4), 255, np.uint8)),
            "m.weight holds a number that is not finite",
        ),
    ],
)
def test_parts_that_do_not_fit(tmp_path: Path, name: str, change: Any, problem: str) -> None:
    layout = LAYOUTS[name]
    folder = opened(tmp_path, change(module(layout)[0]), layout.config)
    with pytest.raises(ModelFileError, match=problem):
        folder.tensor("m.weight").data.sum()


_DTYPES = {
    "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I32": np.int32, "I64": np.int64, "I8": np.int8,
    "F64": np.float64, "BOOL": np.bool_,
}  # fmt: skip


#: Whatever they are, they change nothing.
_NOT_USED = ("input_scale", "input_zero_point", "input_global_scale")


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_shape_and_type_of_a_part_is_read_or_refused(data: st.DataObject) -> None:
    layout = LAYOUTS[data.draw(st.sampled_from(sorted(LAYOUTS)))]
    parts, _ = module(layout, 40, 64)
    part = data.draw(st.sampled_from(sorted({*parts, *_NOT_USED})))
    dtype = data.draw(st.sampled_from([parts[part][0] if part in parts else "F32", *_DTYPES]))
    shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 5, 8, 40, 64]), max_size=3))
    stored = np.dtype(_DTYPES.get(dtype, np.uint8))
    array = np.full(shape, data.draw(st.integers(0 if stored.kind == "u" else -3, 127)), stored)
    with TemporaryDirectory() as folder:
        found = opened(Path(folder), {**parts, part: (dtype, array)}, layout.config)
        for name in found.names:
            try:
                tensor = found.tensor(name)
                values = dequantize(tensor)
            except ModelFileError:
                assert part not in _NOT_USED or name == f"m.{part}"
                continue
            assert values.shape == tensor.shape
            assert bool(tensor.sample(64)) == bool(values.size)
            found.release(name)
            assert np.array_equal(dequantize(found.tensor(name)), values)  # made anew
