"""Tiny models in the layouts of GPTQ, AWQ, compressed-tensors and fp8: random valid tensors, and what they mean.

What they mean is worked out here word by word from the published definitions, in float64, and not with octavo's code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.oracle.tiny import TinyModel, weights

Array = npt.NDArray[Any]
#: Name of a part -> safetensors type and array (bf16 and fp8 as bits).
Stored = dict[str, tuple[str, Array]]
#: rng, rows, width -> parts, and float32 [rows, width].
Maker = Callable[[np.random.Generator, int, int], tuple[Stored, Array]]

MODEL = TinyModel(
    "quantised",
    21,
    {"hidden_size": 192, "intermediate_size": 320, "tie_word_embeddings": False},
    prompt_lengths=(1, 40),
)
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Layout:
    """config: `quantization_config`. make: one module. type: what octavo keeps it in."""

    config: dict[str, Any]
    make: Maker
    type: str


def bf16(values: Array) -> tuple[Array, Array]:
    """Bits, and the values that they stand for: 8 significant bits, ties to even."""
    part, exponent = np.frexp(values.astype(np.float64))
    rounded = np.ldexp(np.rint(part * 256), exponent - 8).astype(np.float32)
    return (rounded.view(np.uint32) >> 16).astype(np.uint16), rounded


def e4m3(bits: int) -> float:
    """OCP 8-bit floating point specification, table 2: bias 7, subnormals."""
    sign, exponent, mantissa = -1.0 if bits & 128 else 1.0, bits >> 3 & 15, bits & 7
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def words(codes: Array, bits: int, order: tuple[int, ...] | None = None) -> Array:
    """Codes [n, m] -> int32 [n, m * bits / 32]: code `order[i]` of a word at bit i * bits."""
    per_word = 32 // bits
    grouped = codes.reshape(len(codes), -1, per_word).astype(np.uint64)
    packed = np.zeros(grouped.shape[:2], np.uint64)
    for place, index in enumerate(order or range(per_word)):
        packed |= grouped[:, :, index] << np.uint64(bits * place)
    return packed.astype(np.uint32).view(np.int32)


def values_of(codes: Array, zeros: Array, scales: Array, group: int, order: Array | None = None) -> Array:
    """float32 [rows, width] of codes [rows, width], zeros and scales [rows, groups], one element after another.

    order: input k is in group order[k] // group, where that isn't k // group.
    """
    out = np.empty(codes.shape, np.float64)
    for k in range(codes.shape[1]):
        g = (k if order is None else order[k]) // group
        out[:, k] = scales[:, g].astype(np.float64) * (codes[:, k].astype(int) - zeros[:, g])
    return out.astype(np.float32)


def _scales(rng: np.random.Generator, shape: tuple[int, ...], width: int, spread: float) -> Array:
    """So that rows of codes that far from zero keep the size of what they are multiplied with."""
    return rng.uniform(0.5, 1.5, shape) / (spread * width**0.5)


def _integers(
    rng: np.random.Generator, rows: int, width: int, bits: int, group: int, symmetric: bool
) -> tuple[Array, ...]:
    """codes, zeros and scales (of any precision)."""
    groups, middle = -(-width // group), 1 << (bits - 1)
    codes = rng.integers(0, 2 * middle, (rows, width))
    zeros = np.full((rows, groups), middle) if symmetric else rng.integers(1, 2 * middle, (rows, groups))
    return codes, zeros, _scales(rng, (rows, groups), width, middle / 1.7)


def gptq(
    bits: int, group_size: int, symmetric: bool, version: str = "gptq", desc_act: bool = False, spread: bool = False
) -> Layout:
    """spread: act-order, so the inputs of a group are no neighbours."""

    def make(rng: np.random.Generator, rows: int, width: int) -> tuple[Stored, Array]:
        group = width if group_size == -1 else group_size
        codes, zeros, scales = _integers(rng, rows, width, bits, group, symmetric)
        scales = scales.astype(np.float16)
        stored_zeros = zeros - (1 if version == "gptq" else 0)
        order = rng.permutation(width) if spread else np.arange(width)
        parts: Stored = {
            "qweight": ("I32", np.ascontiguousarray(words(codes, bits).T)),
            "qzeros": ("I32", words(stored_zeros.T, bits)),
            "scales": ("F16", np.ascontiguousarray(scales.T)),
            "g_idx": ("I32", (order // group).astype(np.int32)),
        }
        return parts, values_of(codes, zeros, scales, group, order)

    config = {
        "quant_method": "gptq", "bits": bits, "group_size": group_size, "sym": symmetric, "desc_act": desc_act,
        "checkpoint_format": version,
    }  # fmt: skip
    return Layout(config, make, "Q8_0" if bits == 8 else "Q4_0" if symmetric else "Q5_0")


def awq(group_size: int) -> Layout:
    def make(rng: np.random.Generator, rows: int, width: int) -> tuple[Stored, Array]:
        group = width if group_size == -1 else group_size
        codes, zeros, scales = _integers(rng, rows, width, 4, group, symmetric=False)
        scales = scales.astype(np.float16)
        parts: Stored = {
            "qweight": ("I32", words(codes.T, 4, _AWQ_ORDER)),
            "qzeros": ("I32", words(zeros.T, 4, _AWQ_ORDER)),
            "scales": ("F16", np.ascontiguousarray(scales.T)),
        }
        return parts, values_of(codes, zeros, scales, group)

    config = {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm"}
    return Layout(config, make, "Q5_0")


def _compressed(format_: str, **weights_: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights_, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": format_, "config_groups": {"group_0": group}}


def pack_quantized(bits: int, group_size: int | None, symmetric: bool, spread: bool = False) -> Layout:
    """spread: as for gptq, `"actorder": "group"`."""

    def make(rng: np.random.Generator, rows: int, width: int) -> tuple[Stored, Array]:
        group = group_size or width
        codes, zeros, scales = _integers(rng, rows, width, bits, group, symmetric)
        scale_bits, scales = bf16(scales)
        parts: Stored = {
            "weight_packed": ("I32", words(codes, bits)),
            "weight_scale": ("BF16", scale_bits),
            "weight_shape": ("I64", np.array([rows, width])),
        }
        if not symmetric:
            parts["weight_zero_point"] = ("I32", np.ascontiguousarray(words(zeros.T, bits).T))
        order = None
        if spread:
            order = rng.permutation(width)
            parts["weight_g_idx"] = ("I32", (order // group).astype(np.int32))
        return parts, values_of(codes, zeros, scales, group, order)

    strategy = "group" if group_size else "channel"
    config = _compressed("pack-quantized", num_bits=bits, strategy=strategy, group_size=group_size, symmetric=symmetric)
    return Layout(config, make, "Q8_0" if bits == 8 else "Q4_0" if symmetric else "Q5_0")


def int_quantized(scale_type: str, whole: bool = False) -> Layout:
    """whole: one scale for all."""

    def make(rng: np.random.Generator, rows: int, width: int) -> tuple[Stored, Array]:
        codes = rng.integers(-127, 128, (rows, width)).astype(np.int8)
        scales = _scales(rng, (1,) if whole else (rows, 1), width, 127 / 1.7)
        if scale_type == "BF16":
            stored, scales = bf16(scales)
        else:
            stored = scales = scales.astype(np.float32)
        values = (codes.astype(np.float64) * scales).astype(np.float32)
        return {"weight": ("I8", codes), "weight_scale": (scale_type, stored)}, values

    return Layout(_compressed("int-quantized", num_bits=8, strategy="channel", symmetric=True), make, "Q8_0")


def _fp8_bits(rng: np.random.Generator, rows: int, width: int) -> Array:
    """All signs and mantissas; exponents up to that of 8."""
    exponents = rng.integers(0, 11, (rows, width))
    return (rng.integers(0, 2, (rows, width)) << 7 | exponents << 3 | rng.integers(0, 8, (rows, width))).astype(
        np.uint8
    )


def fp8(
    config: dict[str, Any], part: str, scale_shape: Callable[[int, int], tuple[int, ...]], block: tuple[int, int]
) -> Layout:
    """block: what shares a scale, (0: all rows, 0: all columns)."""

    def make(rng: np.random.Generator, rows: int, width: int) -> tuple[Stored, Array]:
        bits = _fp8_bits(rng, rows, width)
        scales = _scales(rng, scale_shape(rows, width), width, 4.0).astype(np.float32)
        grid = scales.reshape(-(-rows // (block[0] or rows)), -(-width // (block[1] or width)))
        values = np.array([[e4m3(one) for one in row] for row in bits.tolist()])
        for r in range(rows):
            for k in range(width):
                values[r, k] *= grid[r // (block[0] or rows), k // (block[1] or width)]
        parts: Stored = {
            "weight": ("F8_E4M3", bits), part: ("F32", scales), "input_scale": ("F32", np.ones(1, np.float32)),
        }  # fmt: skip
        return parts, bf16(values.astype(np.float32))[1]

    return Layout(config, make, "BF16")


def _blocks(rows: int, width: int) -> tuple[int, int]:
    return -(-rows // 128), -(-width // 128)


_FLOAT = {"num_bits": 8, "type": "float", "symmetric": True}
LAYOUTS = {
    "gptq-32": gptq(4, 32, True),
    "gptq-64-zeros": gptq(4, 64, False),
    "gptq-128-zeros": gptq(4, 128, False),
    "gptq-row": gptq(4, -1, True, desc_act=True),
    "gptq-act-order": gptq(4, 32, True, desc_act=True, spread=True),
    "gptq-act-order-zeros": gptq(4, 64, False, desc_act=True, spread=True),
    "gptq-v2-zeros": gptq(4, 32, False, "gptq_v2"),
    "gptq-8bit": gptq(8, 64, True),
    "awq-32": awq(32),
    "awq-64": awq(64),
    "awq-128": awq(128),
    "awq-row": awq(-1),
    "packed-row": pack_quantized(4, None, True),
    "packed-32": pack_quantized(4, 32, True),
    "packed-64-zeros": pack_quantized(4, 64, False),
    "packed-act-order": pack_quantized(4, 64, True, spread=True),
    "packed-8bit": pack_quantized(8, 64, True),
    "int8-rows": int_quantized("BF16"),
    "int8-whole": int_quantized("BF16", whole=True),
    "float-whole": fp8(
        _compressed("float-quantized", **_FLOAT, strategy="tensor"), "weight_scale", lambda r, w: (1,), (0, 0)
    ),
    "float-rows": fp8(
        _compressed("float-quantized", **_FLOAT, strategy="channel"), "weight_scale", lambda r, w: (r, 1), (1, 0)
    ),
    "float-blocks": fp8(
        _compressed("float-quantized", **_FLOAT, strategy="block", block_structure=[128, 128]),
        "weight_scale",
        _blocks,
        (128, 128),
    ),
    "fp8-whole": fp8({"quant_method": "fp8", "activation_scheme": "static"}, "weight_scale", lambda r, w: (), (0, 0)),
    "fp8-blocks": fp8(
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        "weight_scale_inv",
        _blocks,
        (128, 128),
    ),
}


def write_model(layout: Layout, quantised: Path, plain: Path) -> dict[str, Array]:
    """MODEL with the matrices of its layers in this layout, and with their values in f32. Returns the values."""
    rng = np.random.default_rng(8)
    stored: Stored = {}
    arrays, made = weights(MODEL), {}
    for name, array in arrays.items():
        if not name.startswith("model.layers.") or array.ndim != 2:
            stored[name] = ("F32", array)
            continue
        parts, made[name] = layout.make(rng, *array.shape)
        stored.update((f"{name.removesuffix('.weight')}.{part}", value) for part, value in parts.items())
    write_folder(quantised, stored, layout.config)
    write_folder(plain, {name: ("F32", made.get(name, array)) for name, array in arrays.items()}, None)
    return made


def write_folder(folder: Path, stored: Stored, quantization: dict[str, Any] | None) -> Path:
    """config.json and model.safetensors of MODEL."""
    folder.mkdir(parents=True, exist_ok=True)
    config = MODEL.full_config if quantization is None else {**MODEL.full_config, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    header, offset = {}, 0
    for name, (dtype, array) in stored.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    data = b"".join(np.ascontiguousarray(array).tobytes() for _, array in stored.values())
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder
