"""CASES CT-01: a template is found in each of its places, and its absence is a message one can act on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import write_gguf
from octavo.formats.model_files import ModelFiles
from octavo.text.chat import ChatTemplate, ChatTemplateError, NoChatTemplate, load_chat_template
from octavo.text.tokenizer import Tokenizer

TURNS = [{"role": "user", "content": "hi"}]


@pytest.fixture
def bare(default_model: ModelFiles, tmp_path: Path) -> ModelFiles:
    """The default model's metadata without its chat template."""
    metadata = {**GgufFile.open(default_model.path).metadata}
    del metadata["tokenizer.chat_template"]
    path = tmp_path / "bare.gguf"
    write_gguf(path, metadata, [])
    return ModelFiles("gguf", path, "bare-model")


@pytest.fixture
def folder(tmp_path: Path) -> ModelFiles:
    return ModelFiles("safetensors", tmp_path, "folder-model")


def text_of(files: ModelFiles, tokenizer: Tokenizer, override: str | None = None) -> tuple[str, str]:
    template = load_chat_template(files, tokenizer, override)
    assert isinstance(template, ChatTemplate)
    return template.encode(TURNS).text, template.origin


def test_in_gguf_metadata(default_model: ModelFiles, tokenizer: Tokenizer) -> None:
    text, origin = text_of(default_model, tokenizer)
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert origin == f"tokenizer.chat_template in {default_model.path}"


def test_missing(bare: ModelFiles, tokenizer: Tokenizer) -> None:
    template = load_chat_template(bare, tokenizer)
    assert isinstance(template, NoChatTemplate)
    with pytest.raises(
        ChatTemplateError, match=r"model bare-model has no chat template; pass one with --chat-template"
    ):
        template.encode(TURNS)


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json"])
def test_beside_the_gguf(bare: ModelFiles, tokenizer: Tokenizer, name: str) -> None:
    text = "beside: {{ messages[0].content }}"
    (bare.folder / name).write_text(json.dumps({"chat_template": text}) if name.endswith("json") else text)
    rendered, origin = text_of(bare, tokenizer)
    assert rendered == "beside: hi"
    assert str(bare.folder / name) in origin


def test_places_in_a_folder_in_order(folder: ModelFiles, tokenizer: Tokenizer) -> None:
    assert isinstance(load_chat_template(folder, tokenizer), NoChatTemplate)
    (folder.path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "config"}))
    assert text_of(folder, tokenizer)[0] == "config"
    (folder.path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert text_of(folder, tokenizer)[0] == "json"
    (folder.path / "chat_template.jinja").write_text("jinja")
    assert text_of(folder, tokenizer)[0] == "jinja"


def test_named_templates(folder: ModelFiles, tokenizer: Tokenizer) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    (folder.path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert text_of(folder, tokenizer)[0] == "plain"


def test_override(default_model: ModelFiles, tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("mine: {{ messages[0].content }}")
    assert text_of(default_model, tokenizer, str(path)) == ("mine: hi", str(path))
    with pytest.raises(ChatTemplateError, match=r"absent\.jinja can't be read as a chat template: No such file"):
        load_chat_template(default_model, tokenizer, str(tmp_path / "absent.jinja"))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ChatTemplateError, match="not UTF-8"):
        load_chat_template(default_model, tokenizer, str(path))
    path.write_text("{% if %}")
    with pytest.raises(ChatTemplateError, match="has an error in line 1"):
        load_chat_template(default_model, tokenizer, str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"chat_template": "{% if %}"}', "has an error in line 1"),
        ('{"chat_template": 5}', "must be a text"),
        ("[]", "must hold a JSON object"),
        ("{", "JSON that can't be read"),
    ],
)
def test_a_broken_template_does_not_stop_the_model(
    folder: ModelFiles, tokenizer: Tokenizer, content: str, message: str
) -> None:
    (folder.path / "tokenizer_config.json").write_text(content)
    template = load_chat_template(folder, tokenizer)
    with pytest.raises(
        ChatTemplateError, match=f"folder-model has no chat template that works: .*{message}.*--chat-template"
    ):
        template.encode(TURNS)
