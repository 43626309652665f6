"""What a file in architectures/ provides: how a family's metadata becomes a spec, and its tensors' names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo.models.description import Description
from octavo.models.names import Names
from octavo.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class Architecture:
    """config: names in config.json's `architectures`; gguf: values of GGUF's general.architecture."""

    config: tuple[str, ...]
    gguf: tuple[str, ...]
    spec: Callable[[Description], DecoderSpec]
    names: Callable[[Description], Names]
