"""POST /v1/chat/completions."""

from __future__ import annotations

from octavo.server import refused
from octavo.server.answers import Answer, ChatAnswer, Stamp, Wanted
from octavo.server.decoding import BodyDecoder
from octavo.server.exchange import CancelWhenGone, Exchange
from octavo.server.front import Front
from octavo.server.generate import Work, answer, salt_of
from octavo.server.messages import parse_messages
from octavo.server.prompts import PromptCut, check_count, checked_ids
from octavo.server.protocol import ChatRequest
from octavo.server.sampling import chat_params, check_common, check_streamed

_decoder = BodyDecoder(ChatRequest, "messages", refused.KNOWN)


async def chat(front: Front, exchange: Exchange) -> None:
    ready = front.require_ready()
    request: ChatRequest
    request, fields = _decoder.decode(await exchange.json_body(front.config.max_body_bytes))
    refused.check_refused(fields, chat=True)
    model = front.check_model(request.model)
    check_common(request)
    params = chat_params(request, front.sampling_defaults, front.vocab_size)
    check_streamed(request, params)
    check_count(1, params, front.config.max_prompts)
    messages = parse_messages(request.messages, ready.max_model_len)

    def make_answer(fingerprint: str, usage_field: bool) -> Answer:
        stamp = Stamp(f"chatcmpl-{exchange.request_id}", model, fingerprint)
        wanted = Wanted(
            logprobs=params.logprobs if request.logprobs else None,
            prompt_logprobs=request.prompt_logprobs,
            token_ids=bool(request.return_token_ids),
            usage_field=usage_field,
        )
        return ChatAnswer(stamp, front.text.token_bytes, wanted)

    cut = PromptCut.of(params, ready.max_model_len, front.config.max_body_bytes)
    with front.admission.reserve(params.width) as seats:
        async with CancelWhenGone(exchange):
            ids = await front.text.render(messages, request.add_generation_prompt is not False, cut.most_tokens)
            work = Work(
                prompts=[checked_ids(cut.cut(ids), front.vocab_size, "messages")],
                params=await front.text.resolve(params),
                priority=request.priority or 0,
                salt=salt_of(exchange, request),
                param="messages",
            )
            await answer(front, exchange, seats, work, request, make_answer)
