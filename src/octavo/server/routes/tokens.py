"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from octavo.server import refused
from octavo.server.decoding import BodyDecoder
from octavo.server.errors import bad_request
from octavo.server.exchange import Exchange
from octavo.server.front import Front
from octavo.server.messages import parse_messages
from octavo.server.prompts import checked_ids
from octavo.server.protocol import (
    NOT_GIVEN,
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)

_tokenize_decoder = BodyDecoder(TokenizeRequest, "prompt messages", refused.KNOWN)
_detokenize_decoder = BodyDecoder(DetokenizeRequest, "tokens")


async def tokenize(front: Front, exchange: Exchange) -> None:
    ready = front.require_ready()
    request: TokenizeRequest
    request, fields = _tokenize_decoder.decode(await exchange.json_body(front.config.max_body_bytes))
    refused.check_refused(fields)
    front.check_model(request.model)
    has_messages = request.messages != NOT_GIVEN
    if (request.prompt is not None) == has_messages:
        raise bad_request("Send either prompt or messages.", "prompt", "invalid_value")
    limit = front.config.max_body_bytes  # also what fits into no context may be counted
    with front.admission.reserve(1):
        if request.prompt is not None:
            ids = await front.text.encode(request.prompt, request.add_special_tokens is not False, limit)
        else:
            messages = parse_messages(request.messages, ready.max_model_len)
            ids = await front.text.render(messages, request.add_generation_prompt is not False, limit)
    texts = None
    if request.return_token_strs:
        texts = [front.text.token_bytes(token).decode(errors="replace") for token in ids]
    await exchange.respond_json(TokenizeResponse(len(ids), ready.max_model_len, ids, texts))


async def detokenize(front: Front, exchange: Exchange) -> None:
    front.require_ready()
    request: DetokenizeRequest
    request, _ = _detokenize_decoder.decode(await exchange.json_body(front.config.max_body_bytes))
    front.check_model(request.model)
    checked_ids(request.tokens, front.vocab_size, "tokens")
    await exchange.respond_json(DetokenizeResponse(front.text.decode(request.tokens)))
