"""Text work for the routes: tokenising and rendering in threads, off the event loop; detokenising in place."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from octavo.engine.params import SamplingParams
from octavo.formats.resolve import resolve
from octavo.server.errors import ApiError, bad_request, context_length_exceeded
from octavo.text.chat import ChatTemplate, ChatTemplateError, Message, NoChatTemplate, load_chat_template
from octavo.text.output import TextOutput
from octavo.text.tokenizer import PromptTooLongError, Tokenizer
from octavo.text.words import Words

log = logging.getLogger("octavo.server")

T = TypeVar("T")

#: Kernels own most of the cores. Queued text work is bounded by the seats that its requests have taken.
THREADS = 2


class TextService:
    """The model's tokenizer and chat template. Empty until `load` has ended; `loaded` says so."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="text")
        self._tokenizer: Tokenizer | None = None
        self._template: ChatTemplate | NoChatTemplate | None = None
        self._words: Words | None = None

    @property
    def loaded(self) -> bool:
        return self._template is not None

    @property
    def vocab_size(self) -> int:
        return self._ready.vocabulary.size

    async def load(self, model: str, chat_template: str | None) -> None:
        """Read tokenizer and template. Raises ModelFileError, or ChatTemplateError for the file `chat_template`."""

        def work() -> tuple[Tokenizer, ChatTemplate | NoChatTemplate]:
            files = resolve(model)
            tokenizer = Tokenizer.load(files)
            return tokenizer, load_chat_template(files, tokenizer, chat_template)

        began_s = time.monotonic()
        tokenizer, template = await self._run(work)
        self._tokenizer, self._template, self._words = tokenizer, template, Words(tokenizer)
        took_s = time.monotonic() - began_s
        log.info("tokenizer and chat template in %.2f s (%d tokens)", took_s, tokenizer.vocabulary.size)
        if isinstance(template, NoChatTemplate):
            log.warning("no chat: %s", template.problem)
        else:
            log.info("chat template: %s", template.origin)

    async def encode(self, text: str, add_special_tokens: bool, max_tokens: int) -> list[int]:
        """Token ids of a raw prompt, whose author speaks for all of it: control tokens' texts are control tokens.

        Raises ApiError 400 for a text that has far more than `max_tokens`, early; one a little longer is encoded.
        """
        tokenizer = self._ready
        encode = tokenizer.encode_prompt if add_special_tokens else tokenizer.encode_trusted
        try:
            return await self._run(lambda: encode(text, max_tokens))
        except PromptTooLongError as error:
            raise _too_long("prompt", error) from None

    async def render(self, messages: Sequence[Message], add_generation_prompt: bool, max_tokens: int) -> list[int]:
        """Token ids of a chat, up to where the answer begins; `max_tokens` as for `encode`. Raises ApiError 400."""
        template = self._template
        assert template is not None
        try:
            prompt = await self._run(
                lambda: template.encode(messages, add_generation_prompt=add_generation_prompt, max_tokens=max_tokens)
            )
        except PromptTooLongError as error:
            raise _too_long("messages", error) from None
        except ChatTemplateError as error:
            code = "no_chat_template" if isinstance(template, NoChatTemplate) else "chat_template_failed"
            raise bad_request(f"{error}.", "messages", code) from None
        return prompt.ids

    async def resolve(self, params: SamplingParams) -> SamplingParams:
        """The parameters with the token ids of their words."""
        words = self._words
        assert words is not None
        if not params.bad_words and not params.dry_multiplier:
            return words.resolved(params)
        return await self._run(lambda: words.resolved(params))

    def decode(self, tokens: Sequence[int]) -> str:
        return self._ready.decode(tokens, skip_special_tokens=False)

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for; nothing for the rows that models have beyond their tokenizer."""
        table = self._ready.vocabulary.token_bytes
        return table[token] if token < len(table) else b""

    def output(self, params: SamplingParams) -> TextOutput:
        return TextOutput(self._ready, params)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def _ready(self) -> Tokenizer:
        assert self._tokenizer is not None, "no text work before the tokenizer is loaded"
        return self._tokenizer

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _too_long(param: str, error: PromptTooLongError) -> ApiError:
    return context_length_exceeded(
        f"{param} has {error.at_least} tokens or more; the context has {error.max_tokens}. Shorten it.", param
    )
