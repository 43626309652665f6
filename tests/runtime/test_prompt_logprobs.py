"""Log-probabilities of prompts: those of drawing the same tokens, whatever the cache holds. CASES PC-04, PC-08."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from tests.oracle.tiny import MODELS, byte_tokenizer, write_gguf_file

from octavo import LLM, SamplingParams, _native
from octavo.outputs import RequestOutput

LEVELS = _native.supported_levels()
PROMPT = [(i * 31 + i * i) % 256 for i in range(33)]
ASKING = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logprobs=3)
MATE = SamplingParams(temperature=1.0, max_tokens=9, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_gguf_file(MODELS["tied"], tmp_path_factory.mktemp("score") / "tiny.gguf", extra=byte_tokenizer()))


@pytest.fixture(params=["reference", *LEVELS])
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def llm(model: str, level: str) -> Iterator[LLM]:
    with make(model, level) as made:
        yield made


def make(model: str, level: str, **changes: object) -> LLM:
    backend = {"backend": "reference"} if level == "reference" else {"isa": level, "threads": 2}
    settings = {"kv_cache_memory_bytes": 1 << 19, "page_size": 4, "max_num_seqs": 8, **backend, **changes}
    return LLM(model, **settings)


def found(output: RequestOutput) -> list[tuple[int, float, dict[int, float]] | None]:
    assert output.prompt_logprobs is not None
    return [None if one is None else (one.token_id, one.logprob, one.top) for one in output.prompt_logprobs]


def test_they_are_those_of_drawing_the_same_tokens(llm: LLM) -> None:
    """Bit for bit: each token is drawn once, as the only one that is allowed, after the prompt before it."""
    (output,) = llm.generate(PROMPT, ASKING)
    first, *rest = found(output)
    assert first is None
    drawing = [
        SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, allowed_token_ids=(token,), logprobs=3)
        for token in PROMPT[1:]
    ]
    drawn = llm.generate([PROMPT[:length] for length in range(1, len(PROMPT))], drawing)
    for token, entry, one in zip(PROMPT[1:], rest, drawn, strict=True):
        (logprob,) = one.outputs[0].logprobs or []
        assert entry == (token, logprob.logprob, logprob.top)


def test_no_cache_and_no_surroundings_show(model: str, level: str) -> None:
    with make(model, level) as cold:
        wanted = found(cold.generate(PROMPT, ASKING)[0])
        longer = [*PROMPT, *PROMPT[:10], 7]
        wanted_longer = found(cold.generate(longer, ASKING)[0])
        assert wanted_longer[: len(PROMPT)] == wanted
    for changes in (
        {},
        {"page_size": 16},
        {"max_num_batched_tokens": 16},
        {"max_num_batched_tokens": 9, "page_size": 8},
        {"prefix_caching": False},
        {"logprobs_mode": "processed"},
    ):
        with make(model, level, **changes) as warm:
            warm.generate([PROMPT, PROMPT[:20]], MATE)
            for _ in range(2):
                assert found(warm.generate(PROMPT, ASKING)[0]) == wanted, changes
            crowd = warm.generate([longer, PROMPT, PROMPT, [5, 6]], [ASKING, MATE, ASKING, MATE])
            assert (found(crowd[0]), found(crowd[2])) == (wanted_longer, wanted), changes
            assert crowd[1].prompt_logprobs is None


def test_they_are_told_once_whatever_the_number_of_choices(llm: LLM) -> None:
    wanted = found(llm.generate(PROMPT, ASKING)[0])
    several = dataclasses.replace(ASKING, n=3, temperature=1.0, max_tokens=5, seed=4, logprobs=1)
    (output,) = llm.generate(PROMPT, several)
    assert found(output) == wanted
    assert len({tuple(answer.token_ids) for answer in output.outputs}) == 3
    plain = dataclasses.replace(several, prompt_logprobs=None)
    assert [answer.token_ids for answer in llm.generate(PROMPT, plain)[0].outputs] == [
        answer.token_ids for answer in output.outputs
    ]


def test_preempted_in_the_middle_of_a_prompt(model: str, level: str) -> None:
    """What was told before is not computed for its own sake again, and nothing is told twice or never."""
    with make(model, level) as free:
        prompts = [[(i * k + 3) % 256 for i in range(60)] for k in (3, 5, 7, 11, 13, 17)]
        wanted = [found(one) for one in free.generate(prompts, ASKING)]
    crowded = {"kv_cache_memory_bytes": 160 * 2 * 2 * 2 * 16 * 2, "max_num_batched_tokens": 24, "max_model_len": 128}
    with make(model, level, **crowded) as tight:
        long = SamplingParams(temperature=1.0, max_tokens=50, ignore_eos=True, prompt_logprobs=3)
        outputs = tight.generate(prompts, long)
        assert tight.engine.stats().preemptions > 0
        assert [found(one) for one in outputs] == wanted


def test_a_prompt_of_one_token_and_one_of_the_whole_context(model: str, level: str) -> None:
    with make(model, level, max_model_len=40) as llm:
        (one,) = llm.generate([[5]], ASKING)
        assert found(one) == [None]
        (whole,) = llm.generate([[5] * 39], ASKING)
        assert len(found(whole)) == 39
        assert whole.outputs[0].finish_reason == "length"


def test_the_best_of_several(llm: LLM) -> None:
    """The highest mean log-probability first; the tokens are those of as many choices."""
    base = SamplingParams(temperature=1.0, max_tokens=6, seed=3, ignore_eos=True, logprobs=0)
    all_of_them = llm.generate(PROMPT, dataclasses.replace(base, n=6))[0].outputs
    means = [sum(one.logprob for one in answer.logprobs or []) / len(answer.token_ids) for answer in all_of_them]
    ranked = sorted(range(6), key=lambda index: -means[index])
    best = llm.generate(PROMPT, dataclasses.replace(base, n=2, best_of=6, logprobs=None))[0].outputs
    assert [answer.token_ids for answer in best] == [all_of_them[index].token_ids for index in ranked[:2]]
    assert [answer.index for answer in best] == [0, 1]
    assert best[0].cumulative_logprob == pytest.approx(means[ranked[0]] * 6)
