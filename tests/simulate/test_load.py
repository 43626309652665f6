"""Traces: what is read, and what is refused in one sentence that names file, line and field."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from octavo.simulate.load import Load, TraceError, poisson, read_load, synthetic

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def trace(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_azures_times_are_seconds_from_the_first_arrival(tmp_path: Path) -> None:
    text = AZURE + "2023-11-16 23:59:59.9800000,374,44\n\n2023-11-17 00:00:01.2500000,396,109\n"
    load = read_load(trace(tmp_path, text))
    assert load.arrival_s == pytest.approx([0.0, 1.27], abs=1e-6)
    assert load.prompt_tokens.tolist() == [374, 396]
    assert load.output_tokens.tolist() == [44, 109]


def test_a_length_file_without_arrivals_comes_all_at_once(tmp_path: Path) -> None:
    load = read_load(trace(tmp_path, "output_tokens,prompt_tokens\n3,5\n4,6\n"))
    assert load.arrival_s.tolist() == [0, 0]
    assert load.prompt_tokens.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: the column ContextTokens .or prompt_tokens. is missing"),
        ("TIMESTAMP,ContextTokens\n1,2\n", "line 1: the column GeneratedTokens .or output_tokens. is missing"),
        (AZURE, "has no requests"),
        (AZURE + "1,2\n", "line 2: there are 2 fields"),
        (AZURE + "1,2,3\n0.5,2,3\n", "line 3: the arrival '0.5' is before"),
        (AZURE + "-1,2,3\n", "line 2: the arrival is '-1'"),
        (AZURE + "nan,2,3\n", "line 2: the arrival is 'nan'"),
        (AZURE + "inf,2,3\n", "line 2: the arrival is 'inf'"),
        (AZURE + "noon,2,3\n", "line 2: the arrival is 'noon'"),
        (AZURE + "2023-11-16 18:15:46.zz,2,3\n", "line 2: the arrival is"),
        (AZURE + "1,0,3\n", "line 2: the prompt tokens are '0'"),
        (AZURE + "1,2,-3\n", "line 2: the output tokens are '-3'"),
        (AZURE + "1,2,3.5\n", "line 2: the output tokens are '3.5'"),
        (AZURE + "1,99999999999999999999,3\n", "line 2: the prompt tokens are '9+'"),
        (AZURE + '1,2,3\n2,"2\n', "line 3: there are 2 fields"),
        (AZURE + "1,\0,3\n", "line 2"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TraceError, match=words) as error:
        read_load(trace(tmp_path, text))
    assert "trace.csv" in str(error.value)
    assert "\n" not in str(error.value)


def test_binary_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match=r"trace\.csv cannot be read"):
        read_load(path)
    with pytest.raises(TraceError, match="No such file"):
        read_load(tmp_path / "none.csv")


def test_lengths_are_clipped_to_the_context_and_counted() -> None:
    load = Load(np.zeros(3), np.array([10, 99, 500]), np.array([10, 50, 50]))
    clipped, changed = load.clipped(100)
    assert clipped.prompt_tokens.tolist() == [10, 99, 99]
    assert clipped.output_tokens.tolist() == [10, 1, 1]
    assert changed == 2


def test_a_repeated_load_keeps_its_rate_and_order() -> None:
    load = synthetic(50, 2.0, 100, 10).repeated(220)
    assert len(load) == 220
    assert (np.diff(load.arrival_s) >= 0).all()
    assert load.arrival_s[100] - load.arrival_s[50] == pytest.approx(load.arrival_s[50] - load.arrival_s[0])


def test_poisson_arrivals_have_the_asked_rate() -> None:
    arrivals = poisson(4000, 5.0, 1)
    assert arrivals[0] == 0
    assert 4000 / arrivals[-1] == pytest.approx(5.0, rel=0.05)
    assert not poisson(3, math.inf, 0).any()
