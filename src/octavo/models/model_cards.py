"""Sampling that a model's authors recommend on its card: for GGUF, which has no place for generation_config.json.

Small models talk nonsense at the API's own default, temperature 1. A card holds only for a file whose metadata surely
names the model; any other file keeps the API's defaults.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.formats.gguf_metadata import Metadata
from octavo.models.defaults import SamplingDefaults


@dataclass(frozen=True, slots=True)
class ModelCard:
    """`organization` and one of `names`: what its GGUF files say in general.organization and general.name."""

    organization: str
    names: tuple[str, ...]
    sampling: SamplingDefaults


CARDS = (
    # The card of HuggingFaceTB/SmolLM2-135M-Instruct on the hub generates with temperature=0.2, top_p=0.9. The first
    # name is that of its published files (the folder of the training run), the second what converters make of its id.
    ModelCard(
        organization="HuggingFaceTB",
        names=("Smollm2 135M 8k Lc100K Mix1 Ep2", "SmolLM2 135M Instruct"),
        sampling=SamplingDefaults(temperature=0.2, top_p=0.9, source="the card of SmolLM2-135M-Instruct"),
    ),
)


def defaults_from_gguf(metadata: Metadata) -> SamplingDefaults:
    """What the card of the model in this file recommends; nothing if the file is of no model known here."""
    said = (metadata.get("general.organization"), metadata.get("general.name"))
    for card in CARDS:
        if said[0] == card.organization and said[1] in card.names:
            return card.sampling
    return SamplingDefaults()
