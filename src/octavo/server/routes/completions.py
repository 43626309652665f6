"""POST /v1/completions."""

from __future__ import annotations

from octavo.server import refused
from octavo.server.answers import Answer, CompletionAnswer, Stamp
from octavo.server.decoding import BodyDecoder
from octavo.server.exchange import CancelWhenGone, Exchange
from octavo.server.front import Front
from octavo.server.generate import Work, answer, salt_of
from octavo.server.prompts import Prompt, check_count, checked_ids, parse_prompts
from octavo.server.protocol import CompletionRequest
from octavo.server.sampling import check_common, completion_params

_decoder = BodyDecoder(CompletionRequest, "prompt", refused.KNOWN)


async def completions(front: Front, exchange: Exchange) -> None:
    ready = front.require_ready()
    request: CompletionRequest
    request, fields = _decoder.decode(await exchange.json_body(front.config.max_body_bytes))
    refused.check_refused(fields)
    model = front.check_model(request.model)
    check_common(request)
    params = completion_params(request, front.sampling_defaults, front.vocab_size)
    prompts = parse_prompts(request.prompt, front.config.max_prompts, ready.max_model_len)
    check_count(len(prompts), params.n, front.config.max_prompts)

    def make_answer(fingerprint: str, usage_field: bool) -> Answer:
        stamp = Stamp(f"cmpl-{exchange.request_id}", model, fingerprint)
        return CompletionAnswer(stamp, front.text.token_bytes, params.logprobs is not None, usage_field)

    with front.admission.reserve(len(prompts) * params.n) as seats:
        async with CancelWhenGone(exchange):
            ids = await _token_ids(front, prompts, request.add_special_tokens is not False)
            work = Work(
                prompts=[checked_ids(prompt, front.vocab_size, "prompt") for prompt in ids],
                params=await front.text.resolve(params),
                priority=request.priority or 0,
                salt=salt_of(exchange, request),
                param="prompt",
            )
            await answer(front, exchange, seats, work, request, make_answer)


async def _token_ids(front: Front, prompts: list[Prompt], add_special_tokens: bool) -> list[list[int]]:
    limit, encode = front.max_model_len, front.text.encode
    return [
        await encode(prompt, add_special_tokens, limit) if isinstance(prompt, str) else prompt for prompt in prompts
    ]
