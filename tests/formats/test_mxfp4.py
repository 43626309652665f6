"""MXFP4 experts of safetensors become GGUF's MXFP4, number for number; what does not fit is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.oracle import mxfp4
from tests.oracle.tiny import write_safetensors

from octavo.formats.blocks import dequantize
from octavo.formats.errors import ModelFileError
from octavo.formats.quantised.folder import QuantisedFolder
from octavo.formats.safetensors import SafetensorsFolder
from octavo.formats.tensor import Tensor, TensorType

SHAPE = (3, 10, 96)


def stack(seed: int = 1, shape: tuple[int, int, int] = SHAPE) -> tuple[mxfp4.Bytes, mxfp4.Bytes]:
    return mxfp4.random_stack(np.random.RandomState(seed), shape)


def opened(folder: Path, stored: dict[str, np.ndarray]) -> QuantisedFolder:
    (folder / "config.json").write_text(json.dumps({"quantization_config": mxfp4.CONFIG}))
    write_safetensors(folder / "model.safetensors", stored)
    found = QuantisedFolder.over(SafetensorsFolder.open(folder))
    assert isinstance(found, QuantisedFolder)
    return found


def read(folder: Path, blocks: np.ndarray, scales: np.ndarray) -> Tensor:
    return opened(folder, {"m.down_proj_blocks": blocks, "m.down_proj_scales": scales}).tensor("m.down_proj")


def test_samples_of_experts_are_theirs(tmp_path: Path) -> None:
    """A file that differs in one expert only is told from the other."""
    blocks, scales = stack()
    changed, doubled = blocks.copy(), scales.copy()
    changed[2, 0, 0, 0] ^= 1
    doubled[1, 0, 0] += 1
    for name in ("plain", "blocks", "scales"):
        (tmp_path / name).mkdir()
    plain, other_blocks, other_scales = (
        [whole.some_rows(slice(10 * index, 10 * index + 10), (10, 96)).sample(24) for index in range(3)]
        for whole in (
            read(tmp_path / "plain", blocks, scales),
            read(tmp_path / "blocks", changed, scales),
            read(tmp_path / "scales", blocks, doubled),
        )
    )
    assert [one == other for one, other in zip(plain, other_blocks, strict=True)] == [True, True, False]
    assert [one == other for one, other in zip(plain, other_scales, strict=True)] == [True, False, True]


# The second is made in more than one piece of 2^20 elements.
@pytest.mark.parametrize("shape", [SHAPE, (2, 900, 1024)])
def test_values_are_those_of_the_definition(tmp_path: Path, shape: tuple[int, int, int]) -> None:
    blocks, scales = stack(2, shape)
    folder = opened(tmp_path, {"m.x_blocks": blocks, "m.x_scales": scales, "m.x_bias": np.ones((3, 10), np.float32)})
    assert sorted(folder.names) == ["m.x", "m.x_bias"]
    tensor = folder.tensor("m.x")
    assert (tensor.type, tensor.shape) == (TensorType.MXFP4, shape)
    assert np.array_equal(dequantize(tensor), mxfp4.values(blocks, scales))
    folder.release("m.x")
    assert np.array_equal(dequantize(folder.tensor("m.x")), mxfp4.values(blocks, scales))  # made anew


def test_every_scale_and_code(tmp_path: Path) -> None:
    """Overflow is the file's own: 6 * 2^127 is no number of float32."""
    scales = np.arange(255, dtype=np.uint8).reshape(1, 255, 1)
    blocks = np.broadcast_to(np.arange(16, dtype=np.uint8) * 17, (1, 255, 1, 16))
    with np.errstate(over="ignore"):
        assert np.array_equal(dequantize(read(tmp_path, blocks, scales)), mxfp4.values(blocks, scales))


@pytest.mark.oracle
@pytest.mark.parametrize("seed", range(20))
def test_equal_to_the_packages_that_read_it(tmp_path: Path, seed: int) -> None:
    gguf = pytest.importorskip("gguf")
    blocks, scales = stack(seed)
    tensor = read(tmp_path, blocks, scales)
    theirs = gguf.dequantize(tensor.data, gguf.GGMLQuantizationType.MXFP4).reshape(SHAPE)
    assert np.array_equal(dequantize(tensor), theirs)
    torch = pytest.importorskip("torch")
    read_by_transformers = pytest.importorskip("transformers.integrations.mxfp4").convert_moe_packed_tensors
    turned = read_by_transformers(torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32).numpy()
    assert np.array_equal(dequantize(tensor), turned.swapaxes(1, 2))


BLOCKS, SCALES = stack()


@pytest.mark.parametrize(
    ("blocks", "scales", "problem"),
    [
        (
            BLOCKS.astype(np.float32),
            SCALES,
            r"m\.down_proj_blocks has type F32 and shape \[3, 10, 3, 16\]; expected are U8 and 4 dimensions",
        ),
        (
            BLOCKS.reshape(3, 10, 48),
            SCALES,
            r"m\.down_proj_blocks has type U8 and shape \[3, 10, 48\]; expected are U8 and 4 dimensions",
        ),
        (
            BLOCKS.reshape(3, 10, 6, 8),
            SCALES,
            r"m\.down_proj_blocks has shape \[3, 10, 6, 8\]; a block must have 16 bytes",
        ),
        (BLOCKS[:0], SCALES, r"m\.down_proj_blocks has shape \[0, 10, 3, 16\]; it must not be empty"),
        (
            BLOCKS,
            SCALES.astype(np.float32),
            r"m\.down_proj_scales has type F32 and shape \[3, 10, 3\]; expected are U8 and 3 dimensions",
        ),
        (BLOCKS, SCALES[:, :9], r"m\.down_proj_scales has shape \[3, 9, 3\]; its blocks ask for \[3, 10, 3\]"),
        (
            BLOCKS,
            np.where(SCALES.max() == SCALES, np.uint8(255), SCALES),
            r"m\.down_proj_scales holds a scale of 255, which is no number in E8M0; the limit is 254",
        ),
    ],
)
def test_parts_that_do_not_fit(tmp_path: Path, blocks: np.ndarray, scales: np.ndarray, problem: str) -> None:
    with pytest.raises(ModelFileError, match=problem) as error:
        read(tmp_path, blocks, scales)
    assert str(error.value).startswith(str(tmp_path))


def test_scales_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tensor m\.x_scales is missing"):
        opened(tmp_path, {"m.x_blocks": BLOCKS}).tensor("m.x")


def test_scales_without_blocks_stay_visible(tmp_path: Path) -> None:
    """So that filling the model's slots names them as left over."""
    assert opened(tmp_path, {"m.x_scales": SCALES}).names == ["m.x_scales"]


def test_experts_that_are_stored_twice(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"holds both m\.x_blocks and m\.x; a module must be stored once"):
        opened(tmp_path, {"m.x_blocks": BLOCKS, "m.x_scales": SCALES, "m.x": np.ones((3, 96, 10), np.float32)})
