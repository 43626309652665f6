"""The calibrated model finds the costs that made its measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.engine.step import Step, StepResult
from octavo.simulate.calibrate import Calibration, Measured, fit, grid, measure, step_of
from octavo.simulate.fields import FileError
from octavo.simulate.replica import VirtualMachine


class True_:
    def seconds(self, tokens: int, sequences: int, context: int, pairs: int, samples: int) -> float:
        return 4e-3 + 2e-4 * tokens + 1e-4 * max(0, tokens - 64) + 3e-5 * samples + 2e-7 * context + 1e-9 * pairs


class Executor:
    """Steps take what the true model says, without taking it."""

    def submit(self, step: Step) -> Executor:
        self._result = VirtualMachine(True_()).run(step)
        return self

    def result(self) -> StepResult:
        return self._result


def measured() -> list[Measured]:
    return list(measure(Executor(), grid(64, 512, 2048), 4, 100_000, 0.0, lambda done, total: None))


def test_predictions_are_close_to_what_was_measured() -> None:
    cost, true = fit(measured()), True_()
    for shape in [(1, 1, 100, 100, 1), (20, 20, 4000, 4000, 20), (300, 2, 600, 60_000, 1), (200, 40, 9000, 30_000, 40)]:
        assert cost.seconds(*shape) == pytest.approx(true.seconds(*shape), rel=0.1)


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    found = Calibration("m", fit(measured()), 2e-4, 4, 1000, 2048, 64, 512)
    path = tmp_path / "cal.json"
    found.write(path)
    again = Calibration.read(path)
    assert again.cost.seconds(9, 3, 50, 60, 2) == found.cost.seconds(9, 3, 50, 60, 2)
    assert (again.overhead_s, again.num_pages, again.model) == (2e-4, 1000, "m")
    for old, new, words in (
        ('"overhead_s": 0.0002', '"overhead_s": -1', "line 3: overhead_s is -1"),
        ('"64":', '"many":', "products_s.many is no number of tokens"),
        ('"per_pair_s"', '"pair"', "per_pair_s is missing"),
    ):
        assert old in path.read_text()
        path.with_name("bad.json").write_text(path.read_text().replace(old, new))
        with pytest.raises(FileError, match=words):
            Calibration.read(path.with_name("bad.json"))


def test_points_beyond_the_pages_are_left_out() -> None:
    points = grid(64, 512, 2048)
    assert all(step_of(point, 4, 10, True) is None for point in points if point.start > 100)
    assert all(point.sequences * point.tokens <= 512 for point in points)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 8 kinds of steps; 3 were measured"):
        fit(measured()[:3])
