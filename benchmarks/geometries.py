"""GGUF files with random weights in the geometry of bigger models: what speed needs, without their download.

    python benchmarks/geometries.py llama-3.2-1b:q4_0 qwen3-0.6b:bf16

Prints the paths. The formats of a geometry hold the same weights, rounded. All are of architecture `llama`, which
every engine here reads; so qwen3-0.6b has Qwen3-0.6B's sizes (head size 128 included) without its norms of Q and K,
which cost next to nothing. The tokenizer is SmolLM2's, filled up to the real vocabulary's size with tokens that no text
is made of but that may be generated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from peers.environment import peers_folder

from octavo.config import EngineConfig
from octavo.formats.blocks import quantize
from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import MetadataValue, write_gguf
from octavo.formats.resolve import resolve
from octavo.formats.tensor import Tensor, TensorType

_NAMES = ("BF16", "Q8_0", "Q4_0", "Q5_0", "Q4_K", "Q6_K")
FORMATS = {name.lower(): TensorType[name] for name in _NAMES}
_ROWS = 4096  # rounded at a time


@dataclass(frozen=True)
class Geometry:
    """Sizes of a decoder of the Llama family; the head is tied to the embedding."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    context: int
    rope_base: float


GEOMETRIES = {
    "llama-3.2-1b": Geometry(128_256, 2048, 16, 32, 8, 64, 8192, 131_072, 500_000.0),
    "qwen3-0.6b": Geometry(151_936, 1024, 28, 16, 8, 128, 3072, 40_960, 1_000_000.0),
    "llama-3-8b": Geometry(128_256, 4096, 32, 32, 8, 128, 14_336, 8192, 500_000.0),
}


def geometry_file(name: str) -> Path:
    """The file for `llama-3.2-1b:q4_0`, written if it is not there. Raises ValueError."""
    geometry, _, format_ = name.partition(":")
    if geometry not in GEOMETRIES or format_ not in FORMATS:
        known = f"{', '.join(GEOMETRIES)} with :{', :'.join(FORMATS)}"
        raise ValueError(f"{name!r} is no model of random weights; known are {known}.")
    target = peers_folder() / f"{geometry}.random.{format_}.gguf"
    if not target.exists():
        print(f"writing {target} ...", file=sys.stderr, flush=True)
        tokenizer = GgufFile.open(resolve(EngineConfig().model).path).metadata
        write_random(target, geometry, GEOMETRIES[geometry], FORMATS[format_], tokenizer)
    return target


def write_random(
    path: Path, name: str, sizes: Geometry, type_: TensorType, tokenizer: Mapping[str, MetadataValue]
) -> None:
    """Write the file. tokenizer: metadata of a byte-level BPE vocabulary of at most sizes.vocab tokens."""
    write_gguf(path, _metadata(name, sizes, tokenizer), _tensors(sizes, type_))


def _metadata(name: str, sizes: Geometry, tokenizer: Mapping[str, MetadataValue]) -> dict[str, MetadataValue]:
    tokens = list(tokenizer["tokenizer.ggml.tokens"])
    tokens += [f"w{index}" for index in range(len(tokens), sizes.vocab)]
    types = np.asarray(tokenizer["tokenizer.ggml.token_type"], np.int32)
    kept = {key: tokenizer[key] for key in tokenizer if key.startswith("tokenizer.")}
    return {
        "general.architecture": "llama",
        "general.name": f"{name}, random weights",
        "llama.context_length": sizes.context,
        "llama.embedding_length": sizes.hidden,
        "llama.block_count": sizes.layers,
        "llama.feed_forward_length": sizes.ffn,
        "llama.attention.head_count": sizes.heads,
        "llama.attention.head_count_kv": sizes.kv_heads,
        "llama.attention.key_length": sizes.head_dim,
        "llama.attention.value_length": sizes.head_dim,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": sizes.head_dim,
        "llama.rope.freq_base": sizes.rope_base,
        "llama.vocab_size": sizes.vocab,
        **kept,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.concatenate([types, np.ones(sizes.vocab - len(types), np.int32)]),
    }


def _tensors(sizes: Geometry, type_: TensorType) -> Iterator[Tensor]:
    random = np.random.default_rng(0)
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    shapes = {
        "attn_q": (queries, sizes.hidden),
        "attn_k": (keys, sizes.hidden),
        "attn_v": (keys, sizes.hidden),
        "attn_output": (sizes.hidden, queries),
        "ffn_gate": (sizes.ffn, sizes.hidden),
        "ffn_up": (sizes.ffn, sizes.hidden),
        "ffn_down": (sizes.hidden, sizes.ffn),
    }
    yield _matrix("token_embd.weight", (sizes.vocab, sizes.hidden), type_, random)
    for layer in range(sizes.layers):
        yield _ones(f"blk.{layer}.attn_norm.weight", sizes.hidden)
        yield _ones(f"blk.{layer}.ffn_norm.weight", sizes.hidden)
        for name, shape in shapes.items():
            yield _matrix(f"blk.{layer}.{name}.weight", shape, type_, random)
    yield _ones("output_norm.weight", sizes.hidden)


def _matrix(name: str, shape: tuple[int, int], type_: TensorType, random: np.random.Generator) -> Tensor:
    """Normal with the variance that keeps activations' size; drawn and rounded some rows at a time."""
    scale = np.float32(shape[1] ** -0.5)
    parts = [
        quantize(name, scale * random.standard_normal((rows, shape[1]), np.float32), type_).data
        for rows in _pieces(shape[0])
    ]
    return Tensor(name, type_, shape, np.concatenate(parts))


def _pieces(rows: int) -> list[int]:
    return [min(_ROWS, rows - start) for start in range(0, rows, _ROWS)]


def _ones(name: str, width: int) -> Tensor:
    values: npt.NDArray[np.float32] = np.ones(width, np.float32)
    return quantize(name, values, TensorType.F32)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="GEOMETRY:FORMAT")
    arguments = parser.parse_args()
    try:
        for name in arguments.names:
            print(geometry_file(name))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
