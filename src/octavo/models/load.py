"""From model files to what an engine needs: spec, weights, end tokens, sampling defaults."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from octavo.formats.gguf import GgufFile
from octavo.formats.model_files import ModelFiles, open_weights
from octavo.formats.safetensors import MAX_INDEX_BYTES, SafetensorsFolder, read_json
from octavo.models.architectures import llama
from octavo.models.defaults import SamplingDefaults, defaults_from_config, end_ids_from_folder, end_ids_from_gguf
from octavo.models.fields import MetadataError
from octavo.models.model_cards import defaults_from_gguf
from octavo.models.slots import Weights, fill, unpermute_rotary
from octavo.models.spec import DecoderSpec

#: Names in config.json's `architectures` that architectures/llama.py maps.
_LLAMA_FAMILY = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
_SAMPLE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to be recorded.

    eos_ids: every token that ends a turn. defaults: the model's own sampling defaults. weights_bytes: as stored.
    identity: 32 hex digits that tell these weights from others (part of the fingerprint; not a checksum).
    release: give the memory of one tensor of the file back after it has been packed.
    """

    spec: DecoderSpec
    weights: Weights
    eos_ids: tuple[int, ...]
    defaults: SamplingDefaults
    weights_bytes: int
    identity: str
    release: Callable[[str], None]


def load_model(files: ModelFiles) -> LoadedModel:
    """Map, check and name a model's weights; none is copied. Raises ModelFileError, MetadataError or WeightsError."""
    if files.kind == "safetensors":
        check_architecture(files)
    file = open_weights(files)
    return _from_gguf(file) if isinstance(file, GgufFile) else _from_folder(file)


def _from_gguf(file: GgufFile) -> LoadedModel:
    architecture = file.metadata.string("general.architecture")
    if architecture != "llama":
        raise MetadataError(f"{file.path}: the architecture {architecture!r} is not supported; supported is llama")
    spec = llama.spec_from_gguf(file.metadata, file)
    weights = fill(spec, file, llama.gguf_name, llama.gguf_ignored)
    unpermute_rotary(spec, weights)
    return _loaded(spec, weights, end_ids_from_gguf(file.metadata), defaults_from_gguf(file.metadata), file.release)


def _from_folder(folder: SafetensorsFolder) -> LoadedModel:
    spec = spec_from_config(folder.config)
    weights = fill(spec, folder, llama.hf_name, llama.hf_ignored)
    end_ids = end_ids_from_folder(folder.path, folder.config)
    return _loaded(spec, weights, end_ids, defaults_from_config(folder.path), folder.release)


def check_architecture(files: ModelFiles) -> None:
    """Raise MetadataError unless a folder's config.json names a supported architecture.

    For a model that can't be served anyway that is the news, and not which of its files is missing or strange.
    """
    _architecture_of(read_json(files.path / "config.json", MAX_INDEX_BYTES))


def spec_from_config(config: Mapping[str, object]) -> DecoderSpec:
    """The spec of any supported config.json. Raises MetadataError."""
    return llama.spec_from_config(config, _architecture_of(config))


def _architecture_of(config: Mapping[str, object]) -> str:
    names = config.get("architectures")
    architecture = names[0] if isinstance(names, list) and names else None
    if architecture not in _LLAMA_FAMILY:
        raise MetadataError(
            f"config.json: the architecture {architecture!r} is not supported; supported are {', '.join(_LLAMA_FAMILY)}"
        )
    return str(architecture)


def _loaded(
    spec: DecoderSpec,
    weights: Weights,
    eos_ids: tuple[int, ...],
    defaults: SamplingDefaults,
    release: Callable[[str], None],
) -> LoadedModel:
    in_vocabulary = tuple(token for token in eos_ids if 0 <= token < spec.vocab)
    weights_bytes = sum(weight.tensor.data.nbytes for weight in weights.matrices.values())
    return LoadedModel(spec, weights, in_vocabulary, defaults, weights_bytes, _identity(spec, weights), release)


def _identity(spec: DecoderSpec, weights: Weights) -> str:
    """Hash of the spec and of each matrix's name, type, shape and first bytes; vectors whole."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr(replace(spec, layers=())).encode())
    for layer in {id(layer): layer for layer in spec.layers}.values():  # most models repeat one object
        digest.update(repr(layer).encode())
    for slot, weight in sorted(weights.matrices.items()):
        tensor = weight.tensor
        digest.update(f"{slot} {tensor.type.name} {tensor.shape}".encode())
        digest.update(tensor.data.reshape(-1)[:_SAMPLE_BYTES].tobytes())
    for slot, vector in sorted(weights.vectors.items()):
        digest.update(slot.encode())
        digest.update(vector.tobytes())
    return digest.hexdigest()
