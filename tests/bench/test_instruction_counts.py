"""benchmarks/instruction_counts.py: what counts as growth, and that its work is what it counts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "instruction_counts.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("instruction_counts", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["instruction_counts"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_growth_beyond_the_tolerance_is_named_with_both_counts(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = {"a": 1000, "b": 1000, "c": 1000}
    grown = script.compare("callgrind", {"a": 1029, "b": 1031, "c": 500, "d": 7}, recorded)
    assert grown == ["b: 1000 -> 1031 instructions, +3.1% (callgrind)", "d: no count is recorded (callgrind)"]
    assert "-50.00%  c" in capsys.readouterr().out


def test_other_compilers_make_other_counts(script: ModuleType) -> None:
    here = {"machine": "x86_64", "compiler": "GCC 12", "python": "3.11", "numpy": "2.0"}
    assert script.comparable("linear, avx2", here, {**here, "numpy": "1.26"})
    assert not script.comparable("linear, avx2", here, {**here, "compiler": "GCC 13"})
    assert script.comparable("scheduler, 8 steps", here, {**here, "compiler": "GCC 13"})
    assert not script.comparable("scheduler, 8 steps", here, {**here, "numpy": "1.26"})


def test_work_is_marked_on_both_sides(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr("os.getsid", lambda pid: calls.append("mark"))
    script.marked(lambda: calls.append("work"))
    assert calls == ["mark", "work", "mark"]


def test_every_case_of_a_level_runs(script: ModuleType) -> None:
    names = []
    for case in script.kernel_cases("generic"):
        case.work()
        names.append(case.name)
    assert len(set(names)) == len(names)
    assert all(name.endswith(", generic") for name in names)
