"""CASES ST-02: stop strings across tokens; the streamed text is the whole text up to the stop."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octavo.engine.params import SamplingParams
from octavo.text.output import TextOutput
from octavo.text.stop import StopStrings
from octavo.text.tokenizer import Tokenizer


def run(pieces: list[str], stop: list[str], include: bool) -> tuple[list[str], str | None]:
    matcher = StopStrings(stop, include)
    out = []
    for piece in pieces:
        out.append(matcher.push(piece))
        if matcher.found is not None:
            return out, matcher.found
    return [*out, matcher.end()], None


def expected(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """By definition: go to the first character that completes a stop string."""
    for end in range(1, len(text) + 1):
        complete = [s for s in stop if text[:end].endswith(s)]
        if complete:
            longest = max(complete, key=len)
            return text[:end] if include else text[: end - len(longest)], longest
    return text, None


@given(
    st.text("ab", max_size=20),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    st.booleans(),
    st.lists(st.integers(0, 20), max_size=6),
)
@example("abab", ["bab", "ab"], False, [2])
def test_by_definition_however_it_is_cut(text: str, stop: list[str], include: bool, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(places)]
    out, found = run(pieces, stop, include)
    assert ("".join(out), found) == expected(text, stop, include)


def test_nothing_of_the_stop_string_is_sent_early() -> None:
    out, found = run(["ABC", "DE", "FG", "HIJK"], ["DEFGHIJ"], False)
    assert (out, found) == (["ABC", "", "", ""], "DEFGHIJ")
    out, found = run(["ABC", "DE", "FG", "HIJK"], ["DEFGHIJ"], True)
    assert (out, found) == (["ABC", "", "", "DEFGHIJ"], "DEFGHIJ")


def test_held_text_is_sent_when_it_was_no_stop_string() -> None:
    assert run(["x<", "/", "b>"], ["</s>"], False) == (["x", "", "</b>", ""], None)
    assert run(["x</"], ["</s>"], False) == (["x", "</"], None)


def test_long_stop_strings_cost_no_more() -> None:
    """The hardest pair for a search that starts over: almost matching all the time."""
    matcher = StopStrings(["a" * 200_000 + "b", "a" * 5_000 + "c"], False)
    start = time.process_time()
    for _ in range(2_000):
        matcher.push("a" * 10)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize("include", [False, True])
def test_streamed_is_whole(tokenizer: Tokenizer, include: bool) -> None:
    text = "Here is the English alphabet: ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    ids = tokenizer.encode(text)
    output = TextOutput(tokenizer, SamplingParams(stop="DEFGHIJ", include_stop_str_in_output=include))
    pieces: list[str] = []
    for token in ids:
        pieces.append(output.push(token))
        if output.stopped:
            break
    end = text.index("DEFGHIJ") + (7 if include else 0)
    assert output.stopped
    assert "".join(pieces) == text[:end]
    # The engine has produced, and usage counts, the tokens up to the one that completed the stop string.
    assert len(pieces) == next(n for n in range(len(ids)) if "DEFGHIJ" in tokenizer.decode(ids[:n]))


def test_stop_in_the_middle_of_a_token_and_of_a_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("good 日本 morning")
    output = TextOutput(tokenizer, SamplingParams(stop="本 mor"))
    assert "".join(output.push(token) for token in ids) == "good 日"
    assert output.stopped


def test_text_before_min_tokens_holds_no_stop_string(tokenizer: Tokenizer) -> None:
    """Not even the beginning of one: what is searched begins behind it."""
    ids = tokenizer.encode("stop stop st") + tokenizer.encode("op stop")
    for least in range(len(ids)):
        output = TextOutput(tokenizer, SamplingParams(stop="stop", min_tokens=least))
        text = ""
        for token in ids:
            text += output.push(token)
            if output.stopped:
                break
        free = tokenizer.decode(ids[:least])
        assert text == free + tokenizer.decode(ids[least:]).partition("stop")[0]
