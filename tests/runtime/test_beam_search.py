"""Beam search through forked block tables against the same search spelled out: whole prompts, a token a request."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest
from tests.oracle.tiny import MODELS, byte_tokenizer, write_gguf_file

from octavo import LLM, SamplingParams, _native
from octavo.engine.params import ParamError

LEVELS = _native.supported_levels()
PROMPT = [(i * 31 + i * i) % 256 for i in range(21)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_gguf_file(MODELS["tied"], tmp_path_factory.mktemp("beams") / "tiny.gguf", extra=byte_tokenizer()))


def make(model: str, level: str = LEVELS[0], **changes: object) -> LLM:
    backend = {"backend": "reference"} if level == "reference" else {"isa": level, "threads": 2}
    settings = {"kv_cache_memory_bytes": 1 << 19, "page_size": 4, "max_num_seqs": 16, **backend, **changes}
    return LLM(model, **settings)


def beams(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"use_beam_search": True, "n": 3, "max_tokens": 10, **fields})


def found(llm: LLM, prompt: list[int], params: SamplingParams) -> list[tuple[list[int], float | None]]:
    (output,) = llm.generate([prompt], params)
    assert [answer.index for answer in output.outputs] == list(range(params.n))
    return [(answer.token_ids, answer.cumulative_logprob) for answer in output.outputs]


def spelled_out(llm: LLM, prompt: list[int], params: SamplingParams) -> list[tuple[list[int], float]]:
    """vLLM's loop: every answer of every step is kept, and nothing ends before max_tokens."""
    width, ends = (
        params.width,
        set(params.stop_token_ids) | (set() if params.ignore_eos else set(llm.engine.facts.eos_ids)),
    )
    one = SamplingParams(
        temperature=0.0, max_tokens=1, logprobs=2 * width, ignore_eos=True, logit_bias=params.logit_bias
    )
    live: list[tuple[list[int], float]] = [([], 0.0)]
    done: list[tuple[list[int], float, float]] = []
    assert params.max_tokens is not None
    for _ in range(params.max_tokens):
        outputs = llm.generate([[*prompt, *tokens] for tokens, _ in live], one)
        children = []
        for (tokens, total), output in zip(live, outputs, strict=True):
            (entry,) = output.outputs[0].logprobs or []
            for token, logprob in entry.top.items():
                if token in ends:
                    done.append(([*tokens, token], total + logprob, len(tokens)))
                else:
                    children.append(([*tokens, token], total + logprob))
        live = sorted(children, key=lambda child: -child[1])[:width]
    done += [(tokens, total, len(tokens)) for tokens, total in live]
    done.sort(key=lambda answer: -(answer[1] / max(1, answer[2]) ** params.length_penalty))
    return [(tokens, total) for tokens, total, _ in done[: params.n]]


VARIANTS = [
    {},
    {"n": 1, "beam_width": 5},
    {"n": 10, "max_tokens": 6},
    {"length_penalty": 0.0},
    {"length_penalty": 2.5, "max_tokens": 16},
    {"length_penalty": -1.0},
    {"ignore_eos": True},
    {"n": 2, "stop_token_ids": tuple(range(0, 240, 3)), "max_tokens": 12},
    {"n": 1},
]


@pytest.mark.parametrize("level", ["reference", *LEVELS])
@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_finds_what_the_spelled_out_search_finds(model: str, level: str, fields: dict[str, Any]) -> None:
    with make(model, level) as llm, make(model, level, logprobs_mode="processed") as processed:
        for prompt in (PROMPT, PROMPT[:1], PROMPT[:16]):
            params = beams(**fields)
            wanted = spelled_out(llm, prompt, params)
            for which in (llm, processed):
                got = found(which, prompt, dataclasses.replace(params, logprobs=0))
                assert [tokens for tokens, _ in got] == [tokens for tokens, _ in wanted]
                for (_, total), (_, expected) in zip(got, wanted, strict=True):
                    assert total == pytest.approx(expected, abs=1e-4)
        assert llm.engine.stats().pages_held == 0
        llm.engine.scheduler.check()


def test_nothing_around_a_search_shows(model: str) -> None:
    """Promise 4, with pages, chunks, threads, slots, mates and preemptions that make beams wait for one another."""
    params = beams(n=4, max_tokens=24, ignore_eos=True, logprobs=2)
    mate = SamplingParams(temperature=1.0, max_tokens=30, ignore_eos=True)
    with make(model) as alone:
        (wanted,) = alone.generate([PROMPT], params)
        (other,) = alone.generate([PROMPT[3:]], params)
    per_token = 2 * 2 * 2 * 16 * 2
    preempted = 0
    for changes in (
        {"page_size": 16},
        {"max_num_batched_tokens": 8},
        {"threads": 1, "max_num_seqs": 5},
        {"prefix_caching": False},
        {"kv_cache_memory_bytes": 300 * per_token, "max_model_len": 128},
        {"kv_cache_memory_bytes": 220 * per_token, "max_model_len": 128},
        {"kv_cache_memory_bytes": 220 * per_token, "max_model_len": 128, "prefix_caching": False},
    ):
        with make(model, **changes) as llm:
            crowd = [[5] * 30, PROMPT, PROMPT[3:], [6, 7], PROMPT]
            outputs = llm.generate(crowd, [mate, params, params, mate, mate])
            assert outputs[1].outputs == wanted.outputs, changes
            assert outputs[2].outputs == other.outputs, changes
            stats = llm.engine.stats()
            preempted += stats.preemptions
            assert stats.pages_held == 0
            llm.engine.scheduler.check()
    assert preempted > 0


def test_a_search_too_large_for_the_pool_goes_on_with_fewer_beams(model: str) -> None:
    per_token = 2 * 2 * 2 * 16 * 2
    with make(model, kv_cache_memory_bytes=72 * per_token, max_model_len=64) as llm:
        (output,) = llm.generate([PROMPT], beams(n=4, beam_width=8, max_tokens=40, ignore_eos=True))
        assert [len(answer.token_ids) for answer in output.outputs] == [40] * 4
        assert {answer.finish_reason for answer in output.outputs} == {"length"}
        assert llm.engine.stats().pages_held == 0
        llm.engine.scheduler.check()


def test_a_search_that_can_never_run_is_refused(model: str) -> None:
    with make(model, max_num_seqs=2) as llm, pytest.raises(ParamError, match=r"3 beams .* at most 2 sequences"):
        llm.generate([PROMPT], beams())


def test_masks_and_bias_count(model: str) -> None:
    with make(model) as llm:
        allowed = (97, 98, 99, 100)
        answers = found(llm, PROMPT, beams(n=4, allowed_token_ids=allowed, bad_words=((97, 98), (99,))))
        for tokens, _ in answers:
            assert set(tokens) <= {97, 98, 100}
            assert (97, 98) not in pairwise(tokens)
        forced = found(llm, PROMPT, beams(n=2, beam_width=2, allowed_token_ids=(257,)))
        assert forced[0] == ([257], None)
        assert forced[1] == ([], None)  # there is no second one
        late = found(llm, PROMPT, beams(n=1, logit_bias={257: 100.0}, min_tokens=3))
        assert (late[0][0].index(257), len(late[0][0])) == (3, 4)


def test_logprobs_and_early_stopping(model: str) -> None:
    with make(model) as llm:
        (output,) = llm.generate([PROMPT], beams(logprobs=4, prompt_logprobs=1, ignore_eos=True))
        for answer in output.outputs:
            assert answer.logprobs is not None
            assert [entry.token_id for entry in answer.logprobs] == answer.token_ids
            assert all(
                entry.top[entry.token_id] == entry.logprob for entry in answer.logprobs if entry.token_id in entry.top
            )
            assert {len(entry.top) for entry in answer.logprobs} == {4}
        assert output.prompt_logprobs is not None
        assert sum(entry is not None for entry in output.prompt_logprobs) == len(PROMPT) - 1
        early = beams(
            n=2, stop_token_ids=tuple(range(0, 240, 3)), max_tokens=60, early_stopping=True, length_penalty=3.0
        )
        before = llm.engine.stats().steps
        llm.generate([PROMPT], early)
        assert llm.engine.stats().steps - before < 12
        before = llm.engine.stats().steps
        llm.generate([PROMPT], dataclasses.replace(early, early_stopping=False))
        assert llm.engine.stats().steps - before > 12


def test_leaving_a_search(model: str) -> None:
    with make(model) as llm:
        active = llm._add(PROMPT, beams())
        for _ in range(4):
            llm._step()
        llm.engine.abort(active.request_id, 1)  # no such thing as one of its choices
        assert llm.engine.stats().running == 3
        llm._drop(active)
        assert not llm.engine.busy
        assert llm.engine.stats().pages_held == 0
        llm.engine.scheduler.check()
        with pytest.raises(ValueError, match="streamed"):
            next(llm.stream("abc", beams(n=1)))


def test_a_failed_pass_ends_a_search_once(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with make(model) as llm:
        wanted = found(llm, PROMPT, beams())
        active = llm._add(PROMPT, beams())
        for _ in range(4):
            llm._step()
        with monkeypatch.context() as patch:
            patch.setattr(llm.engine.executor._plan, "run", lambda batch: 1 / 0)
            llm._step()
        assert {choice.finish_reason for choice in active.choices} == {"error"}
        assert not llm.engine.busy
        assert llm.engine.stats().pages_held == 0
        assert found(llm, PROMPT, beams()) == wanted


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"n": 11}, "n is 11; a beam search has at most 10"),
        ({"beam_width": 11}, "beam_width is 11"),
        ({"beam_width": 2}, "beam_width is 2; it must be at least n, 3"),
        ({"best_of": 5}, "best_of"),
        ({"stop": "x"}, "stop holds 'x'; a beam search sees no text"),
        ({"length_penalty": 11}, "length_penalty is 11"),
        ({"use_beam_search": False, "beam_width": 4}, "beam_width is 4, but use_beam_search is not true"),
        ({"use_beam_search": False, "length_penalty": 2.0}, "length_penalty is 2.0, but"),
    ],
)
def test_what_does_not_go_together(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ParamError, match=problem):
        beams(**fields)
