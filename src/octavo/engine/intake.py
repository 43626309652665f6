"""A request becomes sequences, or is refused."""

from __future__ import annotations

import numpy as np

from octavo.engine.beams import Beams, BeamSearch
from octavo.engine.block_table import BlockTable
from octavo.engine.pages import PagePool
from octavo.engine.params import ParamError
from octavo.engine.policies import rank_of
from octavo.engine.prefix import encode_salt
from octavo.engine.request import Request
from octavo.engine.scheduler_config import SchedulerConfig
from octavo.engine.sequence import Family, Sequence


def make_family(request: Request, config: SchedulerConfig, pool: PagePool, serial: int) -> Family:
    """The sequences of a request, `serial` being the number of those made before it.

    Raises ParamError when the prompt, or the output so far, leaves no room for a token.
    """
    prompt_len, params = len(request.prompt), request.params
    longest = config.max_model_len - 1
    if prompt_len < 1:
        raise ParamError("prompt", "the prompt is empty; it must have at least 1 token.")
    if prompt_len > longest:
        raise ParamError(
            "prompt",
            f"the prompt has {prompt_len} tokens; with a context of {longest + 1} it can have at most {longest}. "
            "Shorten it.",
        )
    if len(request.output) and params.sequences != 1:
        raise ValueError(f"a request with output so far must have n = 1, not {params.sequences}")
    limit = config.max_model_len
    if params.max_tokens is not None:
        limit = min(limit, prompt_len + params.max_tokens)
    if prompt_len + len(request.output) >= limit:
        raise ParamError("output", f"an output of {len(request.output)} tokens is at its limit; nothing is left.")
    family = Family(beams=_beams(request, config, limit) if params.use_beam_search else None)
    tokens = np.concatenate([request.prompt, request.output]).astype(np.int32, copy=False)
    salt, stop_ids = encode_salt(request.salt), frozenset(params.stop_token_ids)
    count = 1 if family.beams else params.sequences  # a search begins with one beam
    for choice in range(request.choice, request.choice + count):
        family.sequences[choice] = Sequence(
            request=request,
            choice=choice,
            family=family,
            rank=rank_of(config.policy, request, serial + len(family.sequences), config.ageing_s),
            tokens=tokens,
            table=BlockTable(pool),
            limit=limit,
            min_tokens_at=prompt_len + params.min_tokens,
            stop_ids=stop_ids,
            salt=salt,
        )
    return family


def _beams(request: Request, config: SchedulerConfig, limit: int) -> Beams:
    if config.historical:
        raise ParamError(
            "use_beam_search",
            f"use_beam_search is true, but memory is {config.kv_policy} and batches are {config.batch_policy}; "
            "it needs --kv-policy paged and --batch-policy continuous.",
        )
    params, most_running = request.params, min(config.max_num_seqs, config.max_num_batched_tokens - 1)
    if params.width > most_running:
        raise ParamError(
            "beam_width" if params.beam_width else "n",
            f"a search with {params.width} beams is asked for; this engine runs at most {most_running} sequences "
            "(--max-num-seqs, --max-num-batched-tokens).",
        )
    ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else config.eos_ids)
    most = limit - len(request.prompt)
    return Beams(BeamSearch(params, most, ends, params.width), {request.choice: None}, last_choice=request.choice)
