"""The offline API on a tiny model whose tokens are bytes."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.oracle.tiny import MODELS, byte_tokenizer, write_gguf_file

import octavo
from octavo import LLM, SamplingParams
from octavo.backends.ops import Batch, Sampled
from octavo.engine.params import ParamError
from octavo.llm import _Shared

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SETTINGS = {"backend": "reference", "kv_cache_memory_bytes": 1 << 20}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("llm") / "tiny.gguf"
    return str(write_gguf_file(MODELS["tied"], path, extra=byte_tokenizer(TEMPLATE)))


@pytest.fixture(scope="module")
def llm(model: str) -> LLM:
    return LLM(model, **SETTINGS)


def test_one_prompt_or_many_texts_or_ids(llm: LLM) -> None:
    (one,) = llm.generate("abc", GREEDY)
    several = llm.generate(["abc", [97, 98, 99], "xyz"], GREEDY)
    (ids,) = llm.generate([97, 98, 99], GREEDY)
    answers = [output.outputs[0] for output in (one, several[0], several[1], ids)]
    assert {tuple(answer.token_ids) for answer in answers} == {tuple(answers[0].token_ids)}
    assert several[2].outputs[0].token_ids != answers[0].token_ids
    assert one.prompt_token_ids == [97, 98, 99]
    assert answers[0].finish_reason == "length"
    assert len(answers[0].token_ids) == 12
    assert llm.generate([], GREEDY) == []


def test_text_is_that_of_the_tokens_streamed_or_not(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=40, ignore_eos=True)
    (output,) = llm.generate("hello", params)
    answer = output.outputs[0]
    assert answer.text == llm.tokenizer.decode(answer.token_ids)
    pieces = list(llm.stream("hello", params))
    assert "".join(pieces) == answer.text
    assert len(pieces) > 10


def test_chat_renders_the_models_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi<|im_end|>"}]
    one, other = llm.chat([messages, [{"role": "user", "content": "ho"}]], GREEDY)
    (alone,) = llm.chat(messages, GREEDY)
    start, end = 256, 257
    expected = [start, *b"user\nhi<|im_end|>", end, *b"\n", start, *b"assistant\n"]
    assert one.prompt_token_ids == expected
    assert alone.outputs[0].token_ids == one.outputs[0].token_ids != other.outputs[0].token_ids
    assert "".join(llm.stream(messages, GREEDY)) == alone.outputs[0].text


def test_chat_without_a_template_says_what_to_do(tmp_path: Path) -> None:
    path = write_gguf_file(MODELS["tied"], tmp_path / "base.gguf", extra=byte_tokenizer())
    with LLM(str(path), **SETTINGS) as base:
        assert base.why_no_chat == "the model base has no chat template"
        with pytest.raises(ValueError, match=r"has no chat template; generate\(\) continues a text as it is"):
            base.chat([{"role": "user", "content": "hi"}], GREEDY)
        assert len(base.generate("hi", GREEDY)[0].outputs[0].token_ids) == 12


def test_choices_differ_and_repeat(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=9, max_tokens=8, ignore_eos=True)
    (first,), (second,) = llm.generate("hi", params), llm.generate("hi", params)
    texts = [answer.token_ids for answer in first.outputs]
    assert [answer.index for answer in first.outputs] == [0, 1, 2]
    assert len({tuple(ids) for ids in texts}) == 3
    assert texts == [answer.token_ids for answer in second.outputs]


def test_stop_strings_cut_the_text_and_end_the_request(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=40, ignore_eos=True)
    whole = llm.generate("hello", params)[0].outputs[0].text
    stop = whole[7:9]
    at = whole.index(stop)
    stopping = SamplingParams(temperature=1.0, seed=5, max_tokens=40, ignore_eos=True, stop=(stop,))
    answer = llm.generate("hello", stopping)[0].outputs[0]
    assert (answer.text, answer.finish_reason) == (whole[:at], "stop")
    assert len(answer.token_ids) < 40
    assert "".join(llm.stream("hello", stopping)) == whole[:at]
    assert not llm.engine.busy


def test_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=3)
    with_top, without = llm.generate(["abc", "abd"], [params, GREEDY])
    entries = with_top.outputs[0].logprobs
    assert entries is not None
    assert [entry.token_id for entry in entries] == with_top.outputs[0].token_ids
    for entry in entries:
        assert len(entry.top) == 3
        assert max(entry.top, key=lambda token: entry.top[token]) == entry.token_id
        assert entry.top[entry.token_id] == entry.logprob <= 0
    assert without.outputs[0].logprobs is None


def test_bad_words_and_allowed_ids(llm: LLM) -> None:
    free = llm.generate("abc", SamplingParams(temperature=1.0, seed=4, max_tokens=40, ignore_eos=True))[0].outputs[0]
    common = max((token for token in free.token_ids if token < 128), key=free.token_ids.count)
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=40, ignore_eos=True, bad_words=(chr(common),))
    assert common not in llm.generate("abc", params)[0].outputs[0].token_ids
    allowed = SamplingParams(temperature=1.0, max_tokens=40, allowed_token_ids=(97, 98, 262))
    (answer,) = llm.generate("abc", allowed)[0].outputs
    assert set(answer.token_ids) <= {97, 98, 262}


def test_dry_keeps_a_greedy_answer_from_going_in_circles(llm: LLM) -> None:
    plain = SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True)
    dry = dataclasses.replace(plain, dry_multiplier=5.0, dry_sequence_breakers=())

    def repeats(params: SamplingParams) -> int:
        ids = llm.generate("hello", params)[0].outputs[0].token_ids
        pairs = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
        return len(pairs) - len(set(pairs))

    assert repeats(plain) > 50
    assert repeats(dry) < 5


def test_processed_logprobs_are_a_setting(model: str) -> None:
    params = SamplingParams(top_k=1, max_tokens=3, ignore_eos=True, logprobs=2)
    with LLM(model, logprobs_mode="processed", **SETTINGS) as processed:
        entries = processed.generate("abc", params)[0].outputs[0].logprobs
    assert entries is not None
    assert [entry.logprob for entry in entries] == [0.0, 0.0, 0.0]


def test_salts_keep_pages_apart_and_prompts_may_be_cut(llm: LLM) -> None:
    prompt = [(i * 7) % 256 for i in range(60)]

    def cached(salt: str | None) -> int:
        return llm.generate([prompt], GREEDY, cache_salt=salt)[0].cached_tokens

    assert cached("a") == 0
    assert cached("a") > 0
    assert cached("b") == cached(None) == 0
    cut = dataclasses.replace(GREEDY, truncate_prompt_tokens=5)
    (output,) = llm.generate([prompt], cut)
    assert output.prompt_token_ids == prompt[-5:]
    longer = [1] * (llm.engine.facts.max_model_len + 10)
    (output,) = llm.generate([longer], dataclasses.replace(GREEDY, truncate_prompt_tokens=-1))
    assert len(output.outputs[0].token_ids) == 12
    with pytest.raises(ParamError, match="truncate_prompt_tokens is 0"):
        dataclasses.replace(GREEDY, truncate_prompt_tokens=0)


def test_priority_is_heard(model: str) -> None:
    with LLM(model, scheduling_policy="priority", max_num_seqs=1, **SETTINGS) as one_at_a_time:
        params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
        first = one_at_a_time._add([1, 2], params)
        later, sooner = one_at_a_time._add([3, 4], params), one_at_a_time._add([5, 6], params, _Shared(priority=-100))
        while sooner.open:
            one_at_a_time._step()
        assert not first.open or first.tokens < 3
        assert later.tokens == 0


def test_leaving_a_stream_early_ends_its_request(llm: LLM) -> None:
    stream = llm.stream("hello", SamplingParams(max_tokens=200, ignore_eos=True))
    next(stream)
    assert llm.engine.busy
    stream.close()
    assert not llm.engine.busy
    assert llm.engine.stats().pages_held == 0


def test_an_interrupted_step_ends_its_answers_and_nothing_else(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    (before,) = llm.generate("hello", GREEDY)
    stream = llm.stream("hello", GREEDY)
    next(stream)

    def interrupted(batch: Batch) -> Sampled:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.executor._plan, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("other", GREEDY)
    with pytest.raises(RuntimeError, match="interrupted"):
        list(stream)
    assert not llm.engine.busy
    assert llm.generate("hello", GREEDY)[0].outputs == before.outputs


def test_a_stream_and_a_batch_at_once(llm: LLM) -> None:
    alone = "".join(llm.stream("hello", GREEDY))
    stream = llm.stream("hello", GREEDY)
    first = next(stream)
    llm.generate(["other", "prompts"], GREEDY)
    assert first + "".join(stream) == alone


@pytest.mark.parametrize(
    ("prompts", "params", "problem"),
    [
        (["ok", ""], GREEDY, "prompt is empty"),
        ([[1, 2, 999]], GREEDY, "ids are from 0 to 262"),
        ([[1, -1]], GREEDY, "ids are from 0 to 262"),
        (["a", "b"], [GREEDY], "2 prompts but 1 sampling parameters"),
        (["a"], SamplingParams(stop_token_ids=(263,)), "stop_token_ids holds token id 263"),
    ],
)
def test_wrong_requests_cost_nothing(llm: LLM, prompts: list, params: SamplingParams, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        llm.generate(prompts, params)
    assert not llm.engine.busy


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("messages", "error", "problem"),
    [
        ("hi", TypeError, "messages is 'hi'; it must be a list of messages"),
        (None, TypeError, "messages is None; it must be a list of messages"),
        (USER, TypeError, "messages is .*it must be a list of messages"),
        ([], ValueError, "messages is empty"),
        ([[USER], []], ValueError, r"messages\[1\] is empty"),
        ([USER, "hi"], TypeError, r"messages\[1\] is 'hi'; it must be a dict"),
        ([{**USER, "role": "usr"}], ValueError, r"messages\[0\]\.role is 'usr'; it must be one of system"),
        ([{"content": "hi"}], ValueError, r"messages\[0\]\.role is None"),
        ([{"role": "user"}], ValueError, r"messages\[0\]\.content is missing"),
        ([[USER], [{"role": "user", "content": 3}]], TypeError, r"messages\[1\]\[0\]\.content is 3"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], ValueError, r"content\[0\] is .*parts must be"),
    ],
)
def test_what_is_no_conversation_is_refused(llm: LLM, messages: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        llm.chat(messages, GREEDY)
    assert not llm.engine.busy


@pytest.mark.parametrize(
    ("prompts", "params", "problem"),
    [
        (None, GREEDY, "prompts is None; it must be a text"),
        (b"abc", GREEDY, "prompts is b'abc'"),
        (["a", 3], GREEDY, "a prompt is 3; it must be a text, or a list of token ids"),
        ([["a"]], GREEDY, "a prompt is"),
        ("a", {"max_tokens": 3}, r"params is \{'max_tokens': 3\}; it must be SamplingParams"),
        (["a"], ["b"], "params is"),
        ("a", 3, "params is 3"),
    ],
)
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any, params: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        llm.generate(prompts, params)
    assert not llm.engine.busy


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"temperature": -1}, "temperature is -1; it must be from 0 to 100"),
        ({"top_p": 0.0}, "top_p is 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"stop": (3,)}, "stop holds 3"),
        ({"stop": 3}, "stop is 3; it must be a list of texts"),
        ({"logit_bias": [1]}, r"logit_bias is \[1\]"),
    ],
)
def test_parameters_are_checked_where_they_are_made(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ParamError, match=problem):
        SamplingParams(**fields)


def test_stop_may_be_a_text_or_a_list() -> None:
    made = SamplingParams(stop="ab", stop_token_ids=[3])  # type: ignore[arg-type]
    assert (made.stop, made.stop_token_ids) == (("ab",), (3,))


def test_numpy_ids_are_ids(llm: LLM) -> None:
    (one,) = llm.generate(np.array([97, 98], np.int32), GREEDY)
    assert one.prompt_token_ids == [97, 98]


def test_a_prompt_longer_than_the_context_is_refused(model: str) -> None:
    with LLM(model, max_model_len=32, **SETTINGS) as small:
        with pytest.raises(ParamError, match="at most 31"):
            small.generate("x" * 32, GREEDY)
        (output,) = small.generate("x" * 30, SamplingParams(temperature=0.0, ignore_eos=True))
        assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (2, "length")


def test_without_max_tokens_an_answer_ends_after_a_thousand_tokens(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.llm.OFFLINE_MAX_TOKENS", 9)
    (output,) = llm.generate("abc", SamplingParams(temperature=0.0, ignore_eos=True))
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (9, "length")
    (least,) = llm.generate("abc", SamplingParams(temperature=0.0, ignore_eos=True, min_tokens=11))
    assert len(least.outputs[0].token_ids) == 11
    assert len(llm.generate("abc")[0].outputs[0].token_ids) <= 9


def test_closed_llms_say_so(model: str) -> None:
    with LLM(model, **SETTINGS) as closing:
        pass
    closing.close()
    with pytest.raises(RuntimeError, match="closed"):
        closing.generate("a", GREEDY)


def test_unknown_settings_are_named(model: str) -> None:
    with pytest.raises(TypeError, match="no setting max_modle_len; there are activations, backend"):
        LLM(model, max_modle_len=3)


def test_the_progress_bar_shows_tokens_per_second(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY, progress=True)
    last = capsys.readouterr().err.rstrip().split("\r")[-1]
    assert last.startswith("2/2 requests |########################| 24 tokens, ")
    assert last.endswith(" tokens/s")
    llm.generate(["a"], GREEDY)  # stderr is no terminal here
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(3)", "raise ValueError('no')", "next(stream)"])
def test_a_script_that_ends_or_raises_leaves_nothing_behind(model: str, ending: str) -> None:
    script = f"""
        from octavo import LLM, SamplingParams
        llm = LLM({model!r}, backend="reference", kv_cache_memory_bytes=1 << 20)
        stream = llm.stream("hello", SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True))
        next(stream)
        {ending}
    """
    began = time.monotonic()
    code = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, timeout=60).returncode
    assert code == {"raise SystemExit(3)": 3, "raise ValueError('no')": 1}.get(ending, 0)
    assert time.monotonic() - began < 30


def test_the_package_shows_what_it_offers() -> None:
    assert {"LLM", "SamplingParams", "__version__"} <= set(dir(octavo))
    result = subprocess.run([sys.executable, "-m", "octavo", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"octavo {octavo.__version__}\n"


def test_importing_octavo_imports_almost_nothing() -> None:
    script = "import sys, octavo; print([m for m in sys.modules if m in ('numpy', 'tokenizers', 'octavo.llm')])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_models_from_a_path_object_string(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="There is no file"):
        LLM(str(tmp_path / "absent.gguf"), backend="reference")
