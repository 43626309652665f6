"""What a model says about generation besides its weights: the tokens that end a turn, and its sampling defaults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from octavo.formats.gguf_metadata import Metadata
from octavo.formats.safetensors import read_json
from octavo.models.fields import Fields

#: Control tokens that end an assistant's turn in some chat format, for files whose eos is another one.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>")
_GGUF_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_MAX_JSON_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Sampling parameters that hold when a request names none; None: the model says nothing. source: who says so."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    source: str = ""

    @property
    def given(self) -> dict[str, float]:
        """SamplingParams field -> value, for what the model says."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "source"}
        return {name: value for name, value in values.items() if value is not None}


def end_ids_from_gguf(metadata: Metadata) -> tuple[int, ...]:
    """GGUF's eos, eot and eom ids and every known turn end among the tokens, ascending."""
    ids = {metadata.integer(f"tokenizer.ggml.{key}", -1) for key in _GGUF_END_KEYS}
    if "tokenizer.ggml.tokens" in metadata:
        ids.update(index for text in TURN_ENDS for index in metadata.positions("tokenizer.ggml.tokens", text))
    return tuple(sorted(ids - {-1}))


def end_ids_from_folder(folder: Path, config: Mapping[str, object]) -> tuple[int, ...]:
    """Eos ids of generation_config.json (else config.json) and every known turn end among the added tokens."""
    generation = _optional_json(folder / "generation_config.json")
    source = generation if generation.get("eos_token_id") is not None else config
    ids = set(_id_list(Fields(source, "eos_token_id")))
    tokenizer = _optional_json(folder / "tokenizer.json")
    ids.update(_turn_ends(tokenizer.get("added_tokens")))
    return tuple(sorted(ids))


def defaults_from_config(folder: Path) -> SamplingDefaults:
    """The sampling parameters of generation_config.json; greedy when it says `do_sample: false`."""
    said = Fields(_optional_json(folder / "generation_config.json"), "generation_config.json")
    if not said.flag("do_sample", True):
        return SamplingDefaults(temperature=0.0, source="generation_config.json")
    has = said.has
    return SamplingDefaults(
        temperature=said.number("temperature", 0.0, 100.0) if has("temperature") else None,
        top_k=said.integer("top_k", 0, 2**31 - 1) if has("top_k") else None,
        top_p=said.number("top_p", 1e-6, 1.0) if has("top_p") else None,
        min_p=said.number("min_p", 0.0, 1.0) if has("min_p") else None,
        repetition_penalty=said.number("repetition_penalty", 0.01, 100.0) if has("repetition_penalty") else None,
        source="generation_config.json",
    )


def _id_list(fields: Fields) -> Iterator[int]:
    """The ids under eos_token_id: one, a list, or none."""
    value = fields.values.get("eos_token_id")
    for item in value if isinstance(value, list) else [value]:
        if item is None:
            continue
        if isinstance(item, bool) or not isinstance(item, int):
            raise fields.error("eos_token_id", f"holds {item!r}; ids must be integers")
        yield item


def _turn_ends(added_tokens: object) -> Iterable[int]:
    if not isinstance(added_tokens, list):
        return
    for entry in added_tokens:
        if isinstance(entry, dict) and entry.get("content") in TURN_ENDS and isinstance(entry.get("id"), int):
            yield entry["id"]


def _optional_json(path: Path) -> Mapping[str, object]:
    return read_json(path, _MAX_JSON_BYTES) if path.exists() else {}
