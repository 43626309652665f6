"""POST /v1/completions."""

from __future__ import annotations

from octavo.server import refused
from octavo.server.answers import Answer, CompletionAnswer, Stamp, Wanted
from octavo.server.decoding import BodyDecoder
from octavo.server.exchange import CancelWhenGone, Exchange
from octavo.server.front import Front
from octavo.server.generate import Work, answer, salt_of
from octavo.server.prompts import Prompt, PromptCut, check_count, checked_ids, parse_prompts
from octavo.server.protocol import CompletionRequest
from octavo.server.sampling import check_common, check_streamed, completion_params

_decoder = BodyDecoder(CompletionRequest, "prompt", refused.KNOWN)


async def completions(front: Front, exchange: Exchange) -> None:
    ready = front.require_ready()
    request: CompletionRequest
    request, fields = _decoder.decode(await exchange.json_body(front.config.max_body_bytes))
    refused.check_refused(fields)
    model = front.check_model(request.model)
    check_common(request)
    params = completion_params(request, front.sampling_defaults, front.vocab_size)
    check_streamed(request, params)
    cut = PromptCut.of(params, ready.max_model_len, front.config.max_body_bytes)
    prompts = parse_prompts(request.prompt, front.config.max_prompts, cut.most_tokens)
    check_count(len(prompts), params, front.config.max_prompts)

    def make_answer(fingerprint: str, usage_field: bool) -> Answer:
        stamp = Stamp(f"cmpl-{exchange.request_id}", model, fingerprint)
        wanted = Wanted(
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
            token_ids=bool(request.return_token_ids),
            usage_field=usage_field,
        )
        return CompletionAnswer(stamp, front.text.token_bytes, wanted)

    with front.admission.reserve(len(prompts) * params.width) as seats:
        async with CancelWhenGone(exchange):
            ids = await _token_ids(front, prompts, request.add_special_tokens is not False, cut)
            work = Work(
                prompts=[checked_ids(prompt, front.vocab_size, "prompt") for prompt in ids],
                params=await front.text.resolve(params),
                priority=request.priority or 0,
                salt=salt_of(exchange, request),
                param="prompt",
                echo=_texts(front, prompts, ids, cut) if request.echo else None,
                echo_logprobs=request.logprobs,
                echo_alone=request.max_tokens == 0,
            )
            await answer(front, exchange, seats, work, request, make_answer)


async def _token_ids(front: Front, prompts: list[Prompt], add_special_tokens: bool, cut: PromptCut) -> list[list[int]]:
    encode = front.text.encode
    return [
        cut.cut(await encode(prompt, add_special_tokens, cut.most_tokens) if isinstance(prompt, str) else prompt)
        for prompt in prompts
    ]


def _texts(front: Front, prompts: list[Prompt], ids: list[list[int]], cut: PromptCut) -> list[str]:
    """The prompts as they are echoed: as they came, or the text of what is left of them."""
    return [
        prompt if isinstance(prompt, str) and not cut.cuts else front.text.decode(own)
        for prompt, own in zip(prompts, ids, strict=True)
    ]
