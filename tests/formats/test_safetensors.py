"""safetensors: good files and folders, and CASES LD-03 for bad ones."""

from __future__ import annotations

import json
import mmap
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.formats.blocks import dequantize, f32_to_bf16
from octavo.formats.errors import ModelFileError
from octavo.formats.model_files import ModelFiles, open_weights
from octavo.formats.safetensors import SafetensorsFile, SafetensorsFolder
from octavo.formats.tensor import TensorType


def encode(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


VALUES = np.arange(12, dtype=np.float32).reshape(3, 4) / 4


def small() -> bytes:
    f32, f16, bf16 = VALUES.tobytes(), VALUES.astype(np.float16).tobytes(), f32_to_bf16(VALUES).tobytes()
    header = {
        "__metadata__": {"format": "pt"},
        "a": entry("F32", [3, 4], 0, 48),
        "b": entry("F16", [12], 48, 72),
        "c": entry("BF16", [3, 2, 2], 72, 96),
        "ids": entry("I64", [1], 96, 104),
        "empty": entry("F32", [0, 4], 104, 104),
    }
    return encode(header, f32 + f16 + bf16 + bytes(8))


def test_an_empty_tensor_where_a_whole_page_ends(tmp_path: Path) -> None:
    header = {"a": entry("F32", [0], 0, 0), "__metadata__": {"x": ""}}
    header["__metadata__"]["x"] = "-" * (mmap.PAGESIZE - len(encode(header)))
    path = tmp_path / "model.safetensors"
    path.write_bytes(encode(header))
    assert path.stat().st_size == mmap.PAGESIZE
    file = SafetensorsFile.open(path)
    file.release("a")
    assert file.tensor("a").nbytes == 0


def test_good_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(small())
    file = SafetensorsFile.open(path)
    assert np.array_equal(dequantize(file.tensor("a")), VALUES)
    assert np.array_equal(dequantize(file.tensor("b")), VALUES.reshape(12))
    assert np.array_equal(dequantize(file.tensor("c")), VALUES.reshape(3, 2, 2))
    assert (file.tensor("c").type, file.tensor("c").data.shape) == (TensorType.BF16, (6, 4))
    file.release("a")
    assert np.array_equal(dequantize(file.tensor("a")), VALUES)
    with pytest.raises(ModelFileError, match=r"tensor ids has type I64, .* supported are F32, F16, BF16"):
        file.tensor("ids")
    with pytest.raises(ModelFileError, match="tensor d is missing"):
        file.tensor("d")


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "short": (b"\0" * 7, "has 7 bytes; a safetensors file has at least 8"),
    "header 2^63": (encode({}, length=2**63), "claims a header of 9223372036854775808 bytes"),
    "header past the end": (encode({}, length=3), "claims a header of 3 bytes"),
    "not JSON": (encode(b"{nonsense"), "JSON that can't be read"),
    "not UTF-8": (encode(b'{"\xff": 1}'), "JSON that can't be read"),
    "a list": (encode(b"[]"), "must hold a JSON object, not list"),
    "deep": (encode(b"[" * 100_000), "JSON that can't be read"),
    "long number": (encode(b'{"a": ' + b"9" * 5000 + b"}"), "JSON that can't be read"),
    "tensor twice": (encode(b'{"a": {}, "a": {}}'), "has a twice"),
    "no description": (encode({"a": 1}), "tensor a has no description"),
    "unknown type": (encode({"a": entry("F99", [1], 0, 4)}, bytes(4)), "tensor a has type 'F99', which is not known"),
    "type is a list": (encode({"a": entry([], [1], 0, 4)}, bytes(4)), r"tensor a has type \[\]"),  # type: ignore[arg-type]
    "negative shape": (encode({"a": entry("F32", [-1], 0, 4)}, bytes(4)), r"tensor a has shape \[-1\]"),
    "shape of truth": (encode({"a": entry("F32", [True], 0, 4)}, bytes(4)), r"tensor a has shape \[True\]"),
    "many dimensions": (encode({"a": entry("F32", [1] * 9, 0, 4)}, bytes(4)), "a list of at most 8"),
    "negative span": (encode({"a": entry("F32", [1], -4, 0)}, bytes(4)), r"tensor a has data_offsets \[-4, 0\]"),
    "span backwards": (encode({"a": entry("F32", [1], 4, 0)}, bytes(4)), r"tensor a has data_offsets \[4, 0\]"),
    "span past the end": (
        encode({"a": entry("F32", [1], 0, 2**60)}, bytes(4)),
        "tensor a ends at byte .* but the file",
    ),
    "wrong size": (encode({"a": entry("F32", [2], 0, 4)}, bytes(4)), r"tensor a has 4 bytes; type F32 .* need 8"),
    "overflowing shape": (encode({"a": entry("F32", [2**62, 4], 0, 4)}, bytes(4)), "need 73786976294838206464"),
    "overlap": (
        encode({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, bytes(12)),
        "tensor b begins .* overlap or leave a hole",
    ),
    "hole": (
        encode({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, bytes(12)),
        "tensor b begins .* overlap or leave a hole",
    ),
    "cut off": (encode({"a": entry("F32", [2], 0, 8)}, bytes(7)), "ends at byte .* but the file has"),
    "more data than tensors": (encode({"a": entry("F32", [1], 0, 4)}, bytes(5)), "its tensors end at"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
    "html": (b"<html><body>404</body></html>", "web page"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file(case: str, tmp_path: Path) -> None:
    content, message = HOSTILE[case]
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(content)
    start = time.perf_counter()
    with pytest.raises(ModelFileError, match=message) as caught:
        SafetensorsFile.open(path)
    assert time.perf_counter() - start < 1.0
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).isprintable()


@given(
    place=st.integers(0, 2000),
    value=st.integers(0, 255),
    cut=st.integers(0, 2000),
    text=st.sampled_from(["9", "-", '"']),
)
@settings(max_examples=300, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutations_raise_nothing_else_and_take_no_memory(
    tmp_path: Path, place: int, value: int, cut: int, text: str
) -> None:
    content = bytearray(small())
    content[place % len(content)] = value
    content[8 + cut % 300 : 8 + cut % 300] = text.encode()
    if cut > 1000:
        del content[cut % len(content) :]
    path = tmp_path / "mutant.safetensors"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        file = SafetensorsFile.open(path)
        for name in file.infos:
            file.tensor(name).data.sum()
    except ModelFileError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 20 * len(content) + 200_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


def shard(path: Path, name: str, value: float) -> None:
    path.write_bytes(encode({name: entry("F32", [1], 0, 4)}, struct.pack("<f", value)))


def index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_single_file_folder(folder: Path) -> None:
    with pytest.raises(ModelFileError, match=r"needs model\.safetensors or .*; safetensors files there: none"):
        SafetensorsFolder.open(folder)
    shard(folder / "weights.safetensors", "a", 1.0)
    weights = open_weights(ModelFiles("safetensors", folder, "x"))
    assert isinstance(weights, SafetensorsFolder)
    assert weights.config == {"model_type": "llama"}
    assert weights.names == ["a"]
    shard(folder / "model.safetensors", "b", 1.0)
    assert "b" in SafetensorsFolder.open(folder)


def test_shards(folder: Path) -> None:
    shard(folder / "one.safetensors", "a", 1.0)
    shard(folder / "two.safetensors", "b", 2.0)
    index(folder, {"a": "one.safetensors", "b": "two.safetensors"})
    weights = SafetensorsFolder.open(folder)
    assert [float(dequantize(weights.tensor(name))[0]) for name in weights.names] == [1.0, 2.0]
    weights.release("b")
    with pytest.raises(ModelFileError, match="tensor c is missing"):
        weights.tensor("c")


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "absent.safetensors"}, r"names the shard absent\.safetensors, which is not in"),
        ({"a": "../../x"}, r"names the shard '\.\./\.\./x'; shards must lie in the model's own folder"),
        ({"a": "/etc/passwd"}, "must lie in the model's own folder"),
        ({"a": "sub/one.safetensors"}, "must lie in the model's own folder"),
        ({"a": ".."}, "must lie in the model's own folder|not in"),
        ({"a": "..\\x"}, "must lie in the model's own folder"),
        ({"a": "x\0"}, "must lie in the model's own folder"),
        ({"a": ""}, "not in|own folder"),
        ({"b": "one.safetensors"}, "says tensor b is in one.safetensors, but it is not"),
        ({"a": 5}, "must map tensor names to file names"),
        ({}, "has no weight_map"),
        ([], "has no weight_map"),
        ({str(i): f"{i}" for i in range(2000)}, "lists 2000 shards; the limit is 1024"),
    ],
)
def test_hostile_index(folder: Path, weight_map: Any, message: str) -> None:
    shard(folder / "one.safetensors", "a", 1.0)
    index(folder, weight_map)
    with pytest.raises(ModelFileError, match=message):
        SafetensorsFolder.open(folder)


def test_config_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json can't be read: No such file"):
        SafetensorsFolder.open(tmp_path)
