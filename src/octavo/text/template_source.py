"""Where a model's chat template is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.formats.errors import ModelFileError
from octavo.formats.gguf import GgufFile
from octavo.formats.model_files import ModelFiles
from octavo.formats.safetensors import read_json

MAX_TEMPLATE_BYTES = 256 << 10
_MAX_JSON_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """A template's text, and where it was found: for the log."""

    text: str
    origin: str


def read_template_file(path: Path) -> TemplateSource:
    """A template from a file of its own. Raises ModelFileError if it can't be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_TEMPLATE_BYTES + 1)
        if len(raw) > MAX_TEMPLATE_BYTES:
            raise ModelFileError(path, f"is longer than {MAX_TEMPLATE_BYTES} bytes, the limit for chat templates")
        return TemplateSource(raw.decode(), str(path))
    except OSError as error:
        raise ModelFileError(path, f"can't be read as a chat template: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ModelFileError(path, "can't be read as a chat template: it is not UTF-8") from None


def find_template(files: ModelFiles) -> TemplateSource | None:
    """The model's own template: in its GGUF metadata, or in a file beside the weights; None if it has none.

    Files: chat_template.jinja, chat_template.json, then tokenizer_config.json. Raises ModelFileError if one of them is
    there but can't be read.
    """
    if files.kind == "gguf":
        metadata = GgufFile.open(files.path).metadata
        if "tokenizer.chat_template" in metadata:
            text = metadata.string("tokenizer.chat_template")
            return TemplateSource(text, f"tokenizer.chat_template in {files.path}")
    jinja = files.folder / "chat_template.jinja"
    if jinja.exists():
        return read_template_file(jinja)
    names = ["chat_template.json"] if files.kind == "gguf" else ["chat_template.json", "tokenizer_config.json"]
    for name in names:
        path = files.folder / name
        if path.exists():
            found = _text_of(path, read_json(path, _MAX_JSON_BYTES).get("chat_template"))
            if found is not None:
                return TemplateSource(found, f"chat_template in {path}")
    return None


def _text_of(path: Path, value: Any) -> str | None:
    """A template, or a list of named ones of which `default` counts."""
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default")
    if value is None or isinstance(value, str):
        return value
    raise ModelFileError(path, "chat_template must be a text, or a list of named texts")
