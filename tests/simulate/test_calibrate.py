"""The calibrated model finds the costs that made its measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from octavo.engine.step import Step, StepResult
from octavo.simulate.calibrate import Measured, Point, fit, grid, measure, spread_of, step_of
from octavo.simulate.calibration import Calibration
from octavo.simulate.fields import FileError
from octavo.simulate.machine import LoopTime, Spread, VirtualMachine


class True_:
    def seconds(self, tokens: int, sequences: int, context: int, pairs: int, samples: int) -> float:
        return 4e-3 + 2e-4 * tokens + 1e-4 * max(0, tokens - 64) + 3e-5 * samples + 2e-7 * context + 1e-9 * pairs


class Executor:
    """Steps take what the true model says, without taking it."""

    groups = 1

    def submit(self, step: Step) -> Executor:
        self._result = VirtualMachine(True_()).run(step)
        return self

    def result(self) -> StepResult:
        return self._result


def measured() -> list[Measured]:
    return measure(Executor(), grid(64, 512, 2048), 4, 100_000, 0.0, lambda done, total: None)


def test_predictions_are_close_to_what_was_measured() -> None:
    cost, true = fit(measured()), True_()
    for shape in [(1, 1, 100, 100, 1), (20, 20, 4000, 4000, 20), (300, 2, 600, 60_000, 1), (200, 40, 9000, 30_000, 40)]:
        assert cost.seconds(*shape) == pytest.approx(true.seconds(*shape), rel=0.1)


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    loop, spread = LoopTime(2e-4, 1e-6, 3e-4), Spread((0.01,), ((0.9, 1.3), (1.0,)))
    found = Calibration("m", fit(measured()), loop, spread, 4, 1000, 2048, 64, 512)
    path = tmp_path / "cal.json"
    found.write(path)
    again = Calibration.read(path)
    assert again.cost.seconds(9, 3, 50, 60, 2) == found.cost.seconds(9, 3, 50, 60, 2)
    assert (again.loop, again.spread, again.num_pages, again.model) == (loop, spread, 1000, "m")
    for old, new, words in (
        ('"step_s": 0.0002', '"step_s": -1', "line 4: loop.step_s is -1"),
        (" 1.3", " 0.0", "spread.factors.0.1 is 0.0; it must be a number from"),
        ("  0.01\n", '  "a"\n', "spread.bounds_s.0 is 'a'; it must be a number from"),
        ('"1": [', '"2": [', "spread.factors.1 is missing"),
        ('"64":', '"many":', "products_s.many is no number of tokens"),
        ('"per_pair_s"', '"pair"', "per_pair_s is missing"),
    ):
        assert old in path.read_text()
        path.with_name("bad.json").write_text(path.read_text().replace(old, new))
        with pytest.raises(FileError, match=words):
            Calibration.read(path.with_name("bad.json"))


class Uneven(Executor):
    """Every third step takes twice as long."""

    count = 0

    def result(self) -> StepResult:
        self.count += 1
        factor = 1.0 if self.count % 3 else 2.0
        return replace(self._result, forward_s=factor * self._result.forward_s)


def test_the_spread_is_what_steps_took_over_their_median_and_is_drawn_from() -> None:
    points = grid(4, 64, 300)
    found = measure(Uneven(), points, 4, 100_000, 0.0, lambda done, total: None, rounds=60)
    assert {len(one.times) for one in found} == {60}
    spread = spread_of(found)
    assert len(spread.bounds_s) == len(spread.factors) - 1 == 3
    for factors in spread.factors:
        assert min(factors) == pytest.approx(1.0)
        assert max(factors) == pytest.approx(2.0)
        assert 0.2 < sum(factor > 1.5 for factor in factors) / len(factors) < 0.5
    step = step_of(points[0], 4, 1000, True)
    assert step is not None
    plain_s = VirtualMachine(True_()).run(step).forward_s
    drawn = [VirtualMachine(True_(), spread=spread, seed=seed).run(step).forward_s / plain_s for seed in range(64)]
    assert set(np.round(drawn, 3)) <= set(np.round(spread.factors[0], 3))
    assert 1.1 < np.mean(drawn) < 1.6


def test_short_and_long_steps_have_spreads_of_their_own() -> None:
    step = step_of(Point(3, 1, 15, True), 4, 1000, True)
    assert step is not None
    plain_s = VirtualMachine(True_()).run(step).forward_s
    for bound, factor in ((plain_s * 1.01, 3.0), (plain_s * 0.99, 5.0)):
        machine = VirtualMachine(True_(), spread=Spread((bound,), ((3.0,), (5.0,))))
        assert machine.run(step).forward_s == pytest.approx(factor * plain_s)


def test_the_loop_takes_its_share_of_every_step() -> None:
    machine = VirtualMachine(True_(), LoopTime(1.0, 0.5, 4.0))
    decode, prefill = step_of(Point(3, 1, 15, True), 4, 1000, True), step_of(Point(2, 8, 0, True), 4, 1000, True)
    assert decode is not None
    assert prefill is not None
    passed = machine.run(decode).forward_s
    assert machine.now_s - passed == pytest.approx(1.0 + 3 * 0.5)
    passed += machine.run(prefill).forward_s
    assert machine.now_s - passed == pytest.approx(2.5 + 1.0 + 2 * 0.5 + 4.0)


def test_points_beyond_the_pages_are_left_out() -> None:
    points = grid(64, 512, 2048)
    assert all(step_of(point, 4, 10, True) is None for point in points if point.start > 100)
    assert all(point.sequences * point.tokens <= 512 for point in points)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 8 kinds of steps; 3 were measured"):
        fit(measured()[:3])
