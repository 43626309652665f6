"""`octavo quantize`: which tensor gets which format, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.formats.blocks import dequantize, quantize
from octavo.formats.errors import ModelFileError
from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import MetadataValue, write_gguf
from octavo.formats.requantize import GgufSource, Mix, Report, requantize
from octavo.formats.tensor import Later, Tensor, TensorType

LAYERS = 16
METADATA: dict[str, MetadataValue] = {
    "general.architecture": "llama",
    "general.file_type": 0,
    "llama.block_count": np.uint64(LAYERS),
    "odd.double": np.float64(0.1),
    "odd.bytes": np.array([1, 0, 1], np.int8),
    "odd.words": ["a", "", "ü"],
}


def tensors(type_: TensorType, tied: bool) -> list[Tensor]:
    rng = np.random.default_rng(3)

    def matrix(name: str, *shape: int) -> Tensor:
        return quantize(name, rng.standard_normal(shape), type_)

    made = [matrix("token_embd.weight", 40, 256)] + ([] if tied else [matrix("output.weight", 40, 256)])
    for layer in range(LAYERS):
        made += [
            quantize(f"blk.{layer}.attn_norm.weight", rng.standard_normal(256), TensorType.F32),
            quantize(
                f"blk.{layer}.attn_q_norm.weight", rng.standard_normal((2, 32)), TensorType.F32
            ),  # one for each head
            quantize(f"blk.{layer}.attn_q.bias", rng.standard_normal(64), TensorType.F32),
            matrix(f"blk.{layer}.attn_q.weight", 64, 256),
            matrix(f"blk.{layer}.attn_v.weight", 32, 256),
            matrix(f"blk.{layer}.ffn_gate_inp.weight", 4, 256),
            matrix(f"blk.{layer}.ffn_down_exps.weight", 4, 8, 96),
            matrix(f"blk.{layer}.ffn_up.weight", 8, 96),
        ]
    return made


def source(folder: Path, type_: TensorType = TensorType.F32, tied: bool = True) -> GgufFile:
    write_gguf(folder / "source.gguf", METADATA, tensors(type_, tied))
    return GgufFile.open(folder / "source.gguf")


def requantized(file: GgufFile, target: Path, mix: Mix, again: bool = False) -> Report:
    return requantize(GgufSource(file), target, mix, again)


def test_what_is_kept_survives_that_its_source_gives_memory_back(tmp_path: Path) -> None:
    class Vanishing(GgufSource):
        """As a folder of quantised modules: what is released is zeros."""

        def __init__(self, file: GgufFile) -> None:
            super().__init__(file)
            self._made: dict[str, Tensor] = {}
            self.tensor = self._make
            self.release = self._vanish

        def _make(self, name: str) -> Tensor:
            if name not in self._made:
                stored = file.tensor(name)
                self._made[name] = Tensor(name, stored.type, stored.shape, stored.data.copy())
            return self._made[name]

        def _vanish(self, name: str) -> None:
            self._made.pop(name).data[:] = 0

    file = source(tmp_path)
    requantize(Vanishing(file), tmp_path / "q.gguf", "Q8_0")
    read = GgufFile.open(tmp_path / "q.gguf")
    for layer in range(LAYERS):
        for name in (f"blk.{layer}.{kept}.weight" for kept in ("attn_norm", "attn_q_norm", "ffn_gate_inp")):
            np.testing.assert_array_equal(read.tensor(name).data, file.tensor(name).data)


def test_a_file_that_fails_its_check_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "q.gguf"
    target.write_bytes(b"before")

    def refuse(path: Path) -> None:
        assert GgufFile.open(path).names
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        requantize(GgufSource(source(tmp_path)), target, "Q8_0", check=refuse)
    assert target.read_bytes() == b"before"
    assert {path.name for path in tmp_path.iterdir()} == {"source.gguf", "q.gguf"}


def types_of(file: GgufFile, pattern: str) -> list[str]:
    return [file.infos[pattern.format(layer)].type.name for layer in range(LAYERS)]


def test_q4_k_m(tmp_path: Path) -> None:
    """The head and half of v and down get more bits; widths of 96 get blocks of 32."""
    requantized(source(tmp_path), tmp_path / "to.gguf", "Q4_K_M")
    file = GgufFile.open(tmp_path / "to.gguf")
    more = [layer in (0, 1, 4, 7, 10, 13, 14, 15) for layer in range(LAYERS)]
    assert types_of(file, "blk.{}.attn_v.weight") == ["Q6_K" if one else "Q4_K" for one in more]
    assert types_of(file, "blk.{}.ffn_down_exps.weight") == ["Q8_0" if one else "Q5_0" for one in more]
    assert set(types_of(file, "blk.{}.attn_q.weight")) == {"Q4_K"}
    assert set(types_of(file, "blk.{}.ffn_up.weight")) == {"Q5_0"}
    assert file.infos["token_embd.weight"].type.name == "Q6_K"


@pytest.mark.parametrize(
    ("mix", "tied", "embedding", "head"),
    [("Q8_0", False, "Q8_0", "Q8_0"), ("Q4_0", False, "Q4_0", "Q6_K"), ("Q4_0", True, "Q6_K", None)],
)
def test_even_mixes(tmp_path: Path, mix: Mix, tied: bool, embedding: str, head: str | None) -> None:
    requantized(source(tmp_path, TensorType.BF16, tied), tmp_path / "to.gguf", mix)
    file = GgufFile.open(tmp_path / "to.gguf")
    assert set(types_of(file, "blk.{}.attn_v.weight") + types_of(file, "blk.{}.ffn_down_exps.weight")) == {mix}
    assert file.infos["token_embd.weight"].type.name == embedding
    assert head is None or file.infos["output.weight"].type.name == head


def test_what_is_kept(tmp_path: Path) -> None:
    before = source(tmp_path, TensorType.F16)
    report = requantized(before, tmp_path / "to.gguf", "Q8_0")
    after = GgufFile.open(tmp_path / "to.gguf")
    assert after.names == before.names
    assert after.metadata.integer("general.file_type") == 7
    changed = {"general.file_type", "general.quantization_version"}
    assert set(after.metadata) == set(before.metadata) | changed
    for key in set(before.metadata) - changed:
        assert after.metadata.encoded(key) == before.metadata.encoded(key), key
    for name in before.names:
        old, new = before.tensor(name), after.tensor(name)
        assert old.shape == new.shape
        if "norm" in name or name.endswith(".bias") or "gate_inp" in name:
            assert (old.type, old.data.tobytes()) == (new.type, new.data.tobytes())
        else:
            assert new.type is TensorType.Q8_0
            assert np.abs(dequantize(new) - dequantize(old)).max() < 0.02
    assert {type_.name: found.tensors for type_, found in report.formats.items()} == {"Q8_0": 65, "F32": 48, "F16": 16}
    assert 0.001 < report.formats[TensorType.Q8_0].error < 0.01
    assert report.formats[TensorType.F32].error == 0.0


def test_rounding_twice_must_be_asked_for(tmp_path: Path) -> None:
    before = source(tmp_path, TensorType.F16)
    requantized(before, tmp_path / "eight.gguf", "Q8_0")
    eight = GgufFile.open(tmp_path / "eight.gguf")
    with pytest.raises(ModelFileError, match=r"is quantised already \(Q8_0\)"):
        requantized(eight, tmp_path / "four.gguf", "Q4_0")
    assert not (tmp_path / "four.gguf").exists()
    requantized(eight, tmp_path / "four.gguf", "Q4_0", again=True)
    with pytest.raises(ModelFileError, match="holds no matrix that Q4_0 would change"):
        requantized(GgufFile.open(tmp_path / "four.gguf"), tmp_path / "x.gguf", "Q4_0", again=True)


def test_a_number_that_is_not_finite(tmp_path: Path) -> None:
    values = np.zeros((2, 32), np.float32)
    values[1, 3] = np.inf
    write_gguf(tmp_path / "inf.gguf", METADATA, [quantize("blk.0.attn_q.weight", values, TensorType.F32)])
    with pytest.raises(ModelFileError, match=r"tensor blk\.0\.attn_q\.weight holds a number that is not finite"):
        requantized(GgufFile.open(tmp_path / "inf.gguf"), tmp_path / "to.gguf", "Q8_0")
    assert [path.name for path in tmp_path.iterdir()] == ["inf.gguf"]


def test_later_tensor_of_the_wrong_size(tmp_path: Path) -> None:
    wrong = Tensor("w", TensorType.Q8_0, (2, 32), Later(2, 34, lambda: np.zeros((1, 34), np.uint8)))
    with pytest.raises(ValueError, match="tensor w has 34 bytes; it said 68"):
        write_gguf(tmp_path / "w.gguf", {}, [wrong])
