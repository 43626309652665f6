"""From model files to what an engine needs: spec, weights, end tokens, sampling defaults."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from octavo.backends.ops import Weight
from octavo.formats.gguf import GgufFile
from octavo.formats.model_files import ModelFiles, open_weights
from octavo.formats.quantised.folder import QuantisedFolder
from octavo.formats.safetensors import MAX_INDEX_BYTES, SafetensorsFolder, read_json
from octavo.models.architecture import Architecture
from octavo.models.architectures import ARCHITECTURES
from octavo.models.defaults import SamplingDefaults, defaults_from_config, end_ids_from_folder, end_ids_from_gguf
from octavo.models.description import Description
from octavo.models.fields import Fields, MetadataError
from octavo.models.fill import fill
from octavo.models.model_cards import defaults_from_gguf
from octavo.models.slots import Weights, WeightsError
from octavo.models.spec import DecoderSpec

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

    def for_context(self, tokens: int) -> LoadedModel:
        """The model for sequences of at most `tokens`, which some rotary scalings depend on (and so the identity)."""
        spec = self.spec.for_context(tokens)
        if spec is self.spec:
            return self
        ropes = {id(layer.mixer.rope): layer.mixer.rope for layer in spec.layers}
        digest = hashlib.blake2b(self.identity.encode(), digest_size=16)
        for rope in ropes.values():
            digest.update(b"" if rope is None else rope.inv_freq.tobytes())
        return replace(self, spec=spec, identity=digest.hexdigest())


def load_model(files: ModelFiles) -> LoadedModel:
    """Map, check and name a model's weights; none is copied. Raises ModelFileError, MetadataError or WeightsError."""
    if files.kind == "safetensors":
        check_architecture(files)
    file = open_weights(files)
    try:
        return _from_gguf(file) if isinstance(file, GgufFile) else _from_folder(file)
    except (MetadataError, WeightsError) as error:
        raise type(error)(f"{files.path}: {error}") from None


def _from_gguf(file: GgufFile) -> LoadedModel:
    name = file.metadata.string("general.architecture")
    architecture = next((known for known in ARCHITECTURES if name in known.gguf), None)
    if architecture is None:
        supported = ", ".join(name for known in ARCHITECTURES for name in known.gguf)
        raise MetadataError(f"the architecture {name!r} is not supported; supported are {supported}")
    model = Description(name, Fields(file.metadata, "GGUF metadata"), file, in_gguf=True)
    spec = architecture.spec(model)
    weights = fill(spec, file, architecture.names(model))
    return _loaded(spec, weights, end_ids_from_gguf(file.metadata), defaults_from_gguf(file.metadata), file.release)


def _from_folder(folder: SafetensorsFolder) -> LoadedModel:
    name, architecture = architecture_of(folder.config)
    file = QuantisedFolder.over(folder)
    model = Description(name, Fields(folder.config, "config.json"), file, in_gguf=False)
    spec = architecture.spec(model)
    weights = fill(spec, file, architecture.names(model))
    end_ids = end_ids_from_folder(folder.path, folder.config)
    return _loaded(spec, weights, end_ids, defaults_from_config(folder.path), file.release)


def check_architecture(files: ModelFiles) -> None:
    """Raise MetadataError unless a folder's config.json names a supported architecture.

    For a model that can't be served anyway that is the news, and not which of its files is missing or strange.
    """
    architecture_of(read_json(files.path / "config.json", MAX_INDEX_BYTES))


def architecture_of(config: Mapping[str, object]) -> tuple[str, Architecture]:
    """The architecture that config.json names, and its name there. Raises MetadataError for an unsupported one."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    architecture = next((known for known in ARCHITECTURES if name in known.config), None)
    if architecture is None or not isinstance(name, str):
        supported = ", ".join(name for known in ARCHITECTURES for name in known.config)
        raise MetadataError(f"config.json: the architecture {name!r} is not supported; supported are {supported}")
    return name, architecture


def _loaded(
    spec: DecoderSpec,
    weights: Weights,
    eos_ids: tuple[int, ...],
    defaults: SamplingDefaults,
    release: Callable[[str], None],
) -> LoadedModel:
    in_vocabulary = tuple(token for token in eos_ids if 0 <= token < spec.vocab)
    weights_bytes = sum(_stored_bytes(weight) for weight in weights.matrices.values())
    identity = _identity(spec, weights)
    # What has been looked at so far is little, but the kernel has mapped much around it.
    for name in {weight.tensor.name for weight in weights.matrices.values()}:
        release(name)
    return LoadedModel(spec, weights, in_vocabulary, defaults, weights_bytes, identity, release)


def _stored_bytes(weight: Weight) -> int:
    """Of the rows that are the matrix's own: heads of several may lie in one tensor."""
    return weight.tensor.nbytes if weight.row_index is None else len(weight.row_index) * weight.tensor.row_bytes


def _identity(spec: DecoderSpec, weights: Weights) -> str:
    """Hash of the spec and of each matrix's name, type, shape and some bytes; vectors whole."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr(replace(spec, layers=())).encode())
    for layer in {id(layer): layer for layer in spec.layers}.values():  # most models repeat one object
        digest.update(repr(layer).encode())
    for slot, weight in sorted(weights.matrices.items()):
        tensor = weight.tensor
        digest.update(f"{slot} {tensor.type.name} {tensor.shape}".encode())
        digest.update(tensor.sample(_SAMPLE_BYTES))
        digest.update(b"" if tensor.order is None else tensor.order.tobytes())
    for slot, vector in sorted(weights.vectors.items()):
        digest.update(slot.encode())
        digest.update(vector.tobytes())
    return digest.hexdigest()
