"""A GGUF model split into several files is one model, and a set that is not whole is one clear error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from octavo.formats.blocks import quantize
from octavo.formats.errors import ModelFileError
from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import MetadataValue, write_gguf
from octavo.formats.resolve import public_name
from octavo.formats.tensor import TensorType

Change = Callable[[int, dict[str, MetadataValue]], None]


def tensor(name: str, seed: int) -> tuple[str, np.ndarray]:
    return name, np.random.default_rng(seed).standard_normal((3, 64)).astype(np.float32)


ALL = [[], [tensor("a", 1), tensor("b", 2)], [tensor("c", 3)]]


def write(folder: Path, change: Change | None = None) -> Path:
    """Three files, the first without tensors (as gguf-split --no-tensor-first-split makes them)."""
    for number, part in enumerate(ALL):
        metadata: dict[str, MetadataValue] = {"split.no": np.uint16(number), "split.count": np.uint16(3)}
        if number == 0:
            metadata |= {"general.architecture": "llama", "split.tensors.count": np.int32(3)}
        if change is not None:
            change(number, metadata)
        tensors = [quantize(name, values, TensorType.Q8_0) for name, values in part]
        write_gguf(folder / f"m-Q8_0-{number + 1:05}-of-00003.gguf", metadata, tensors)
    return folder / "m-Q8_0-00001-of-00003.gguf"


def test_reads_as_one_file(tmp_path: Path) -> None:
    file = GgufFile.open(write(tmp_path))
    assert file.names == ["a", "b", "c"]
    assert file.metadata.string("general.architecture") == "llama"
    for name, values in (one for part in ALL for one in part):
        stored = file.tensor(name)
        assert np.array_equal(stored.data, quantize(name, values, TensorType.Q8_0).data)
        file.release(name)
        assert np.array_equal(stored.data, quantize(name, values, TensorType.Q8_0).data)
    assert "d" not in file
    assert public_name(str(file.path)) == "m-Q8_0"


def test_only_the_first_can_be_named(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(ModelFileError, match=r"00002-of-00003\.gguf is not the first .* name m-Q8_0-00001-of-00003"):
        GgufFile.open(tmp_path / "m-Q8_0-00002-of-00003.gguf")


def test_a_part_is_missing(tmp_path: Path) -> None:
    first = write(tmp_path)
    (tmp_path / "m-Q8_0-00003-of-00003.gguf").unlink()
    with pytest.raises(
        ModelFileError, match=r"needs m-Q8_0-00003-of-00003\.gguf beside it, which is missing \(3 of 3\)"
    ):
        GgufFile.open(first)


def test_a_name_without_numbers(tmp_path: Path) -> None:
    write(tmp_path).rename(tmp_path / "m.gguf")
    with pytest.raises(ModelFileError, match=r"is one of 3 files of a model, whose names must end in -00001-of-00003"):
        GgufFile.open(tmp_path / "m.gguf")


def test_parts_that_were_exchanged(tmp_path: Path) -> None:
    first = write(tmp_path)
    second, third = tmp_path / "m-Q8_0-00002-of-00003.gguf", tmp_path / "m-Q8_0-00003-of-00003.gguf"
    second.rename(tmp_path / "x")
    third.rename(second)
    (tmp_path / "x").rename(third)
    with pytest.raises(ModelFileError, match=r"00002-of-00003\.gguf is not what its name says, file 2 of 3"):
        GgufFile.open(first)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("split.tensors.count", np.int32(4), "names 4 tensors in all its files; they hold 3"),
        ("split.count", np.uint16(4), "is one of 4 files .* -00001-of-00004"),
        ("split.count", "3", "split.count must be an integer"),
        ("split.count", np.uint32(60_000), "is one of 60000 files; a model may have 4096"),
        ("split.no", np.uint16(1), "is not the first of 3 files"),
    ],
)
def test_wrong_counts(tmp_path: Path, key: str, value: MetadataValue, message: str) -> None:
    def change(number: int, metadata: dict[str, MetadataValue]) -> None:
        if number == 0:
            metadata[key] = value

    with pytest.raises(ModelFileError, match=message):
        GgufFile.open(write(tmp_path, change))


def test_a_tensor_twice(tmp_path: Path) -> None:
    first = write(tmp_path)
    twice = [quantize("a", np.zeros((1, 32)), TensorType.Q8_0)]
    metadata: dict[str, MetadataValue] = {"split.no": np.uint16(2), "split.count": np.uint16(3)}
    write_gguf(tmp_path / "m-Q8_0-00003-of-00003.gguf", metadata, twice)
    with pytest.raises(ModelFileError, match=r"has tensor a, which m-Q8_0-00002-of-00003\.gguf has too"):
        GgufFile.open(first)
