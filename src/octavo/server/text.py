"""Text work for the routes: tokenising and rendering in threads, off the event loop; detokenising in place."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from octavo.engine.params import SamplingParams
from octavo.formats.resolve import resolve
from octavo.server.errors import bad_request
from octavo.text.output import TextOutput
from octavo.text.tokenizer import Tokenizer

log = logging.getLogger("octavo.server")

T = TypeVar("T")

#: Kernels own most of the cores. Queued text work is bounded by the seats that its requests have taken.
THREADS = 2


class TextService:
    """The model's tokenizer and chat template. Empty until `load` has ended; `loaded` says so."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="text")
        self._tokenizer: Tokenizer | None = None
        self.longest_token_bytes = 1

    @property
    def loaded(self) -> bool:
        return self._tokenizer is not None

    @property
    def vocab_size(self) -> int:
        return self._ready.vocabulary.size

    async def load(self, model: str, chat_template: str | None) -> None:
        """Raises ModelFileError or ConfigError."""
        began_s = time.monotonic()
        tokenizer = await self._run(lambda: Tokenizer.load(resolve(model)))
        self.longest_token_bytes = max(map(len, tokenizer.vocabulary.token_bytes))
        self._tokenizer = tokenizer
        log.info("tokenizer: %d tokens in %.2f s", tokenizer.vocabulary.size, time.monotonic() - began_s)

    async def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of a raw prompt, whose author speaks for all of it: control tokens' texts are control tokens."""
        tokenizer = self._ready
        return await self._run(
            lambda: tokenizer.encode_prompt(text) if add_special_tokens else tokenizer.encode_trusted(text)
        )

    async def render(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Token ids of a chat, up to where the answer begins. Raises ApiError 400."""
        raise bad_request("no template")

    def decode(self, tokens: Sequence[int]) -> str:
        return self._ready.decode(tokens, skip_special_tokens=False)

    def token_bytes(self, token: int) -> bytes:
        return self._ready.vocabulary.token_bytes[token]

    def output(self, params: SamplingParams) -> TextOutput:
        return TextOutput(self._ready, params.stop, params.include_stop_str_in_output, params.skip_special_tokens)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def _ready(self) -> Tokenizer:
        assert self._tokenizer is not None, "no text work before the tokenizer is loaded"
        return self._tokenizer

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
