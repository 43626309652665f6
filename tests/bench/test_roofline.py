"""`octavo bench roofline` on a tiny model: what is measured, what it is compared with, what a user sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.backends.harness import LEVELS
from tests.oracle.tiny import MODELS, write_folder

from octavo.backends.cpu.peaks import Peaks, measure_peaks
from octavo.backends.ops import UnsupportedError
from octavo.backends.work import StepLoad, Work
from octavo.bench.roofline import Shape, attention_shapes, run_roofline, shapes
from octavo.bench.roofline_report import text
from octavo.bench.roofline_steps import StepRunner, TimedStep
from octavo.cli import main as cli
from octavo.config import EngineConfig
from octavo.formats.tensor import TensorType


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_folder(MODELS["tied"], tmp_path_factory.mktemp("tiny")))


def silent(what: str) -> None:
    pass


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.bench.roofline._PEAKS_S", 0.05)
    monkeypatch.setattr("octavo.bench.roofline._MOST_POOL_BYTES", 1 << 20)
    monkeypatch.setattr("octavo.bench.roofline_steps._REPEAT_S", 0.01)
    monkeypatch.setattr("octavo.bench.roofline_formats.WIDTH", 256)
    monkeypatch.setattr("octavo.bench.roofline_formats.MATRICES", 2)
    monkeypatch.setattr("octavo.backends.cpu.peaks._LEAST_BUFFER", 8 << 20)
    monkeypatch.setattr("octavo.backends.cpu.peaks._MOST_BUFFER", 8 << 20)


def test_shapes_fit_into_the_pool_and_the_model() -> None:
    found = list(shapes((1, 8, 128, 512), capacity=16384, longest=200))
    assert Shape("decode", 1, 200) in found
    assert Shape("decode", 128, 128) in found
    assert Shape("decode", 512, 32) in found
    assert Shape("prefill", 128, 128) in found
    assert all(shape.rows <= 200 for shape in found if shape.kind == "prefill")
    for shape in attention_shapes(512, 40000, 8192):
        assert sum(chunk.context for chunk in shape.load.chunks) <= 40000
    assert Shape("decode", 8, 1024) not in set(attention_shapes(512, 8000, 8192))


def test_the_slowest_of_memory_cache_and_arithmetic_is_the_bound() -> None:
    peaks = Peaks(1, 10.0, 100.0, {"int8": 4.0, "bf16": 0.0, "f32": 2.0})
    assert peaks.bound(Work(20, 100, {"int8": 4})).by == "memory"
    assert peaks.bound(Work(20, 100, {"int8": 4})).seconds == 2.0
    assert peaks.bound(Work(1, 500, {"int8": 4})).by == "cache"
    assert peaks.bound(Work(1, 0, {"int8": 4, "bf16": 6})).by == "bf16"
    assert peaks.bound(Work(1, 0, {"bf16": 6})).seconds == 3.0  # at f32's rate
    assert peaks.best(Peaks(1, 5.0, 200.0, {"int8": 5.0, "bf16": 0.0, "f32": 1.0})) == Peaks(
        1, 10.0, 200.0, {"int8": 5.0, "bf16": 0.0, "f32": 2.0}
    )


@pytest.mark.parametrize("level", LEVELS)
def test_peaks_of_every_level(level: str) -> None:
    told: list[str] = []
    peaks = measure_peaks(level, 2, 0.05, told.append)
    assert len(told) == 5
    assert 1e8 < peaks.memory_bytes_per_s < 1e13
    assert peaks.cache_bytes_per_s > 1e8
    assert (peaks.operations_per_s["bf16"] > 0) == (level == "avx512_bf16")
    assert min(peaks.operations_per_s["f32"], peaks.operations_per_s["int8"]) > 1e8


def test_every_op_of_a_step(model: str) -> None:
    result = run_roofline(EngineConfig(model=model, threads=1, activations="f32"), (1, 32), silent)
    assert result.complete
    assert [(step.shape.kind, step.shape.rows) for step in result.steps] == [
        ("decode", 1),
        ("decode", 32),
        ("prefill", 32),
    ]
    for step in result.steps:
        parts_of_others = {op.name.split()[0] for op in step.ops if not op.seconds}
        assert parts_of_others <= {"norm", "silu"}, "of the linear groups that they prepare"
        assert 0.3 * step.seconds < sum(op.seconds for op in step.ops) <= step.seconds
        (qkv,) = [op for op in step.ops if op.name.startswith("q_proj+k_proj+v_proj")]
        assert qkv.count == 2
        assert qkv.operations == 2 * 2 * step.shape.rows * 128 * 64
        assert qkv.bound_s >= qkv.operations / result.peaks[-1].operations_per_s["f32"]
        assert qkv.share == qkv.bound_s / qkv.seconds
    shown = text(result)
    assert "decode of 32 rows" in shown
    assert "tokens/s" in shown


def test_every_format_of_weights(model: str) -> None:
    result = run_roofline(EngineConfig(model=model, threads=1), (1, 8), silent, formats=True)
    assert [one.format for one in result.formats] == [type_.name for type_ in TensorType]
    for one in result.formats:
        assert [figures.rows for figures in one.rows] == [1, 8]
        for figures in one.rows:
            assert figures.bytes_per_s * figures.seconds == pytest.approx(2 * 256 * 256 * one.bits / 8)
            assert figures.operations_per_s * figures.seconds == pytest.approx(2 * 2 * 256 * 256 * figures.rows)
    assert {one.format: one.bits for one in result.formats}["MXFP4"] == 4.25
    assert "\nMXFP4 " in text(result)
    assert not run_roofline(EngineConfig(model=model, threads=1), (1,), silent).formats


def test_an_interrupt_keeps_what_was_measured(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = StepRunner.time

    def interrupted(self: StepRunner, load: StepLoad) -> TimedStep:
        if load.chunks[0].new > 1:
            raise KeyboardInterrupt
        return timed(self, load)

    monkeypatch.setattr(StepRunner, "time", interrupted)
    result = run_roofline(EngineConfig(model=model, threads=1), (32,), silent)
    assert (result.complete, len(result.steps)) == (False, 1)
    assert "INTERRUPTED" in text(result)


def test_the_command(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "roofline.json"
    arguments = ["--model", model, "--rows", "4", "2", "--threads", "2", "--kv-cache-dtype", "f32", "--isa", "generic"]
    assert cli.main(["bench", "roofline", *arguments, "--json", str(file)]) == 0
    captured = capsys.readouterr()
    assert "isa generic" in captured.out
    assert "1 thread" in captured.out
    assert "2 threads" in captured.out
    assert "decode, 2 rows" in captured.err
    content = json.loads(file.read_text())
    assert content["complete"] is True
    assert [step["shape"]["rows"] for step in content["steps"]] == [2, 4]
    assert content["facts"]["kv"] == "f32"


def test_only_native_ops_can_be_measured(model: str) -> None:
    with pytest.raises(UnsupportedError, match="native ops of --backend cpu"):
        run_roofline(EngineConfig(model=model, backend="reference"), (1,), silent)
