"""Conversations to prompts, by the model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import nodes
from jinja2.environment import Template
from jinja2.exceptions import TemplateSyntaxError

from octavo.formats.errors import ModelFileError
from octavo.formats.model_files import ModelFiles
from octavo.text.provenance import Marker
from octavo.text.sandbox import TemplateRaisedError, TemplateSandbox
from octavo.text.template_budget import TemplateLimits
from octavo.text.template_source import MAX_TEMPLATE_BYTES, TemplateSource, find_template, read_template_file
from octavo.text.tokenizer import Tokenizer

Message = Mapping[str, Any]

#: Variables that are the server's to set; callers' own variables can't have these names.
RESERVED = frozenset(["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"])
_SERVERS_REMEDY = "pass one with --chat-template FILE, or use /v1/completions"


class ChatTemplateError(ValueError):
    """The conversation can't be rendered: no template, a template that fails, or one that refuses it."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation."""

    text: str
    ids: list[int]


class ChatTemplate:
    """A model's chat template. May be used by several threads; rendering takes milliseconds, so not on an event loop.

    Attributes: origin, where the template was found.
    """

    def __init__(self, source: TemplateSource, tokenizer: Tokenizer, limits: TemplateLimits | None = None) -> None:
        """Raises ChatTemplateError if the template does not compile."""
        self.origin = source.origin
        self._tokenizer = tokenizer
        self._sandbox = TemplateSandbox(limits)
        facts = tokenizer.vocabulary
        self._special = {"bos_token": facts.text(facts.bos_id), "eos_token": facts.text(facts.eos_id)}
        tree, self._template = _compile(self._sandbox, source)
        literals = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
        names = literals | {node.attr for node in tree.find_all(nodes.Getattr)}
        self._marker = Marker(facts.control.keys(), literals, names)
        self._takes_parts = _iterates_content(tree)

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> ChatPrompt:
        """The prompt of a conversation.

        messages: `role`, `content` (a text, a list of parts, or None) and what else the API allows. variables: further
        ones for the template. Everything in them is users' text: it never becomes a control token, whatever it says.
        Raises ChatTemplateError, and PromptTooLongError as Tokenizer.encode_viewed does for `max_tokens`.
        """
        taken = RESERVED.intersection(variables or ())
        if taken:
            raise ChatTemplateError(f"template variables can't be named {', '.join(sorted(taken))}")
        given = {
            **(variables or {}),
            "messages": [self._normalised(message) for message in messages],
            "tools": tools,
            "documents": documents,
        }
        own = {**self._special, "add_generation_prompt": add_generation_prompt}
        now = datetime.now()
        text = self._render({**given, **own}, now)
        marking = self._marker.start(given)
        marked = self._render({**{name: marking.mark(value) for name, value in given.items()}, **own}, now)
        harmless = not self._marker.mentions_control(given)
        return self._prompt(text, marking.unmark(marked), marked, harmless, max_tokens)

    def _prompt(self, text: str, unmarked: str, marked: str, harmless: bool, max_tokens: int | None) -> ChatPrompt:
        """Choose what to encode when the marked rendering took another path than the plain one.

        If users wrote no control token's text and both hold the same control tokens, all of them are the template's
        own. Else the marked rendering is taken: it is the one in which it is known who wrote what.
        """
        tokenizer = self._tokenizer
        if unmarked != text:
            if harmless and tokenizer.control_ids_in(text) == tokenizer.control_ids_in(marked):
                marked = text
            else:
                text = unmarked
        ids = tokenizer.encode_viewed(text, marked, max_tokens)
        facts = tokenizer.vocabulary
        if facts.add_bos and facts.bos_id is not None and ids[:1] != [facts.bos_id]:
            ids.insert(0, facts.bos_id)
        return ChatPrompt(text, ids)

    def _render(self, context: Mapping[str, Any], now: datetime) -> str:
        try:
            with self._sandbox.limited(now):
                pieces = self._template.root_render_func(self._template.new_context(dict(context)))
                return self._sandbox.budget.joined(pieces)
        except TemplateRaisedError as error:
            raise ChatTemplateError(f"the chat template refuses this conversation: {_named(error)}") from None
        except Exception as error:
            raise ChatTemplateError(f"the chat template ({self.origin}) failed: {_named(error)}") from None

    def _normalised(self, message: Message) -> dict[str, Any]:
        """Null content as "", and parts as one text where the template does not go through parts itself."""
        content = message.get("content")
        if content is None:
            content = ""
        elif isinstance(content, list) and not self._takes_parts:
            content = "\n".join(part.get("text") or "" for part in content if isinstance(part, Mapping))
        return {**message, "content": content}


class NoChatTemplate:
    """Stands where a model's template would: the model still serves plain completions.

    Attributes: reason, a sentence that names the model; problem, the same and what to do.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        self.problem = f"{reason}; {remedy}"

    def encode(self, messages: Sequence[Message], **options: object) -> ChatPrompt:
        """Raises ChatTemplateError."""
        raise ChatTemplateError(self.problem)


def check_template_file(path: str) -> None:
    """Read and compile a template that an operator names, without a model. Raises ChatTemplateError."""
    _compile(TemplateSandbox(None), _read(path))


def load_chat_template(
    files: ModelFiles, tokenizer: Tokenizer, override: str | None = None, remedy: str = _SERVERS_REMEDY
) -> ChatTemplate | NoChatTemplate:
    """The chat template to use: a file that the operator names, or the model's own.

    override: that file; one that can't be used raises ChatTemplateError. A model without a template, or with a broken
    one, is no error here but at each `encode`. remedy: what its message tells to do then.
    """
    if override is not None:
        return ChatTemplate(_read(override), tokenizer)
    try:
        source = find_template(files)
        if source is not None:
            return ChatTemplate(source, tokenizer)
        reason = f"the model {files.name} has no chat template"
    except (ChatTemplateError, ModelFileError) as error:
        reason = f"the model {files.name} has no chat template that works: {error}"
    return NoChatTemplate(reason, remedy)


def _compile(sandbox: TemplateSandbox, source: TemplateSource) -> tuple[nodes.Template, Template]:
    if len(source.text.encode()) > MAX_TEMPLATE_BYTES:
        raise ChatTemplateError(f"the chat template ({source.origin}) is longer than {MAX_TEMPLATE_BYTES} bytes")
    try:
        with sandbox.limited():
            tree = sandbox.parse(source.text)
            code = sandbox.compile_counted(sandbox.parse(source.text))
            return tree, Template.from_code(sandbox, code, sandbox.make_globals(None))
    except TemplateSyntaxError as error:
        raise ChatTemplateError(
            f"the chat template ({source.origin}) has an error in line {error.lineno}: {error.message}"
        ) from None
    except Exception as error:
        raise ChatTemplateError(f"the chat template ({source.origin}) can't be compiled: {_named(error)}") from None


def _read(path: str) -> TemplateSource:
    try:
        return read_template_file(Path(path).expanduser())
    except ModelFileError as error:
        raise ChatTemplateError(str(error)) from None


def _iterates_content(tree: nodes.Template) -> bool:
    """Whether the template has a loop over `message.content`: then it takes content as a list of parts."""
    for loop in tree.find_all(nodes.For):
        for node in (loop.iter, *loop.iter.find_all((nodes.Getattr, nodes.Getitem))):
            if isinstance(node, nodes.Getattr) and node.attr == "content":
                return True
            if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content":
                return True
    return False


def _named(error: Exception) -> str:
    """An error of unknown origin in one line."""
    text = " ".join(str(error).split())[:300]
    return text or type(error).__name__
