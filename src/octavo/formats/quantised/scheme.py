"""What config.json's `quantization_config` says, checked: how a folder's modules are to be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.formats.errors import ModelFileError
from octavo.formats.quantised.fp8 import fp8
from octavo.formats.quantised.integers import awq, gptq, packed, plain_int8
from octavo.formats.quantised.matrix import Matrix
from octavo.formats.quantised.mxfp4 import mxfp4
from octavo.formats.quantised.parts import Parts
from octavo.formats.safetensors import MAX_INDEX_BYTES, read_json

FIELD = "quantization_config"
#: Where GPTQ's first writers put it.
_OLD_FILE = "quantize_config.json"
_SUPPORTED = "gptq, awq, compressed-tensors, fp8 and mxfp4"
_LARGEST_GROUP = 1 << 20


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to store a module. `main` (of type `dtype`; empty: any) tells that a module is stored so; `parts` are all
    it may have.

    What `unused` names is about activations, which are never rounded to what the file says. joint: what stands between
    the names of module and part. shown: what makes a module's name that of the tensor which its parts make.
    outputs_last: the last dimension of a part is that of the module's outputs, the tensor's rows; else the first is.
    """

    main: str
    dtype: str
    parts: tuple[str, ...]
    make: Callable[[Parts], Matrix]
    unused: tuple[str, ...] = ()
    joint: str = "."
    shown: str = ".weight"
    outputs_last: bool = False

    def module(self, name: str, dtype: str) -> str | None:
        """The module whose main part is the tensor of this name and type, if it is one's."""
        ending = self.joint + self.main
        return name.removesuffix(ending) if name.endswith(ending) and self.dtype in (dtype, "") else None

    def names(self, module: str) -> list[str]:
        """Of all tensors that a module may have."""
        return [module + self.joint + part for part in (*self.parts, *self.unused)]


def kinds(path: Path, config: Mapping[str, Any]) -> tuple[Kind, ...]:
    """How modules may be stored in a folder with this config.json; none if it is not quantised.

    Raises ModelFileError with one sentence for what is not supported.
    """
    said = config.get(FIELD)
    if said is not None:
        fields = _Said(path / "config.json", FIELD, said)
    elif (path / _OLD_FILE).exists():
        fields = _Said(path / _OLD_FILE, "", {"quant_method": "gptq", **read_json(path / _OLD_FILE, MAX_INDEX_BYTES)})
    else:
        return ()
    method = fields.value("quant_method", None)
    readers = {"gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed, "fp8": _fp8, "mxfp4": _mxfp4}
    if not isinstance(method, str) or method not in readers:
        raise fields.error("quant_method", method, _SUPPORTED)
    return readers[method](fields)


class _Said:
    """The object, and sentences about it. within: the field of the file that holds it; empty: it is the file."""

    def __init__(self, path: Path, within: str, said: object) -> None:
        if not isinstance(said, dict):
            raise ModelFileError(path, f"{within} is {_shown(said)}; it must be an object")
        self._path = path
        self._within = f"{within}: " if within else ""
        self._said: dict[str, Any] = said

    def value(self, name: str, default: object) -> Any:
        value = self._said.get(name)
        return default if value is None else value

    def one_of(self, name: str, default: object, supported: tuple[object, ...]) -> Any:
        value = self.value(name, default)
        if not any(value == one and type(value) is type(one) for one in supported):
            raise self.error(name, value, ", ".join(map(str, supported)))
        return value

    def none(self, name: str) -> None:
        """The field must be absent or empty."""
        if self.value(name, None):
            raise self.error(name, self._said[name], "none")

    def error(self, name: str, value: object, supported: str) -> ModelFileError:
        return ModelFileError(self._path, f"{self._within}{name} is {_shown(value)}; supported: {supported}")

    def group_size(self) -> int:
        size = self.value("group_size", 128)
        if not isinstance(size, int) or isinstance(size, bool) or (size != -1 and not 32 <= size <= _LARGEST_GROUP):
            raise self.error("group_size", size, "-1 (a row is one group) and multiples of 32")
        return size


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _gptq(said: _Said) -> tuple[Kind, ...]:
    bits = said.one_of("bits", None, (4, 8))
    less = {"gptq": 1, "gptq_v2": 0}[said.one_of("checkpoint_format", "gptq", ("gptq", "gptq_v2"))]
    size = said.group_size()
    parts = ("qweight", "qzeros", "scales", "g_idx")
    return (Kind("qweight", "I32", parts, lambda module: gptq(module, bits, size, less), outputs_last=True),)


def _awq(said: _Said) -> tuple[Kind, ...]:
    bits = said.one_of("bits", said.value("w_bit", None), (4,))
    version = said.value("version", "gemm")
    if str(version).lower() != "gemm":
        raise said.error("version", version, "gemm")
    size = said.group_size()
    parts = ("qweight", "qzeros", "scales")
    return (Kind("qweight", "I32", parts, lambda module: awq(module, bits, size), outputs_last=True),)


_PACKED = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")
_SCALED = ("weight", "weight_scale")
_OF_INPUT = ("input_scale", "input_zero_point", "input_global_scale")


def _compressed(said: _Said) -> tuple[Kind, ...]:
    formats = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense")
    said.one_of("format", None, formats)
    said.none("kv_cache_scheme")
    said.none("transform_config")
    sparsity = said.value("sparsity_config", {})
    if isinstance(sparsity, dict) and sparsity.get("format", "dense") != "dense":
        raise said.error("sparsity_config", sparsity, "dense weights")
    blocks = {_block(said, "block_structure", weights) for weights in _weights(said)} - {None}
    if len(blocks) > 1:
        raise said.error("config_groups", sorted(blocks, key=str), "one block_structure for all")
    block = next(iter(blocks), None)
    return (
        Kind("weight_packed", "I32", _PACKED, packed, _OF_INPUT),
        Kind("weight", "I8", (*_SCALED, "weight_zero_point"), plain_int8, _OF_INPUT),
        Kind("weight", "F8_E4M3", _SCALED, lambda module: fp8(module, block), _OF_INPUT),
    )


def _weights(said: _Said) -> list[dict[str, Any]]:
    """What config_groups say about weights."""
    groups = said.value("config_groups", None)
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise said.error("config_groups", groups, "an object of objects")
    found = [group.get("weights") for group in groups.values()]
    if not all(isinstance(weights, dict) for weights in found):
        raise said.error("config_groups", groups, "groups that quantise weights")
    return [weights for weights in found if isinstance(weights, dict)]


def _fp8(said: _Said) -> tuple[Kind, ...]:
    said.one_of("fmt", "e4m3", ("e4m3", "float8_e4m3fn"))
    block = _block(said, "weight_block_size", said.value)
    parts = ("weight", "weight_scale_inv", "weight_scale")
    return (Kind("weight", "F8_E4M3", parts, lambda module: fp8(module, block), _OF_INPUT),)


def _mxfp4(said: _Said) -> tuple[Kind, ...]:
    """It has no variants, and `modules_to_not_convert` says no more than the tensors' names."""
    return (Kind("blocks", "", ("blocks", "scales"), mxfp4, joint="_", shown=""),)


def _block(said: _Said, name: str, source: Any) -> tuple[int, int] | None:
    value = source(name, None) if callable(source) else source.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(type(n) is int and n > 0 for n in value):
        raise said.error(name, value, "two whole numbers, rows and columns")
    return value[0], value[1]
