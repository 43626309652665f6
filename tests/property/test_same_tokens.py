"""Promise 4: a request's logits and tokens are bit-identical whatever surrounds it, on every ISA level.

The subject's logits alone are the expectation; then it runs among up to 40 others, in chunks, on other page sizes, with
a cold or a warm prefix index, preempted, on one thread or two.
"""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.oracle.tiny import MODELS, VOCAB, write_gguf_file

from octavo import _native
from octavo.backends.kv_types import KV_TYPES
from octavo.config import EngineConfig
from octavo.engine.params import SamplingParams
from octavo.engine.request import Request
from octavo.formats.tensor import TensorType
from octavo.runtime.build import build_engine
from octavo.runtime.engine import Engine

LEVELS = _native.supported_levels()
MAX_LEN = 128
SUBJECT = 10_000
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
SEEDED = SamplingParams(
    temperature=0.9, top_k=50, top_p=0.95, repetition_penalty=1.2, presence_penalty=0.3, max_tokens=6, ignore_eos=True
)


@dataclass(frozen=True)
class Kind:
    """What the promise is scoped to: level, weights, activation and KV type."""

    level: str
    weights: TensorType
    activations: str = "auto"
    kv: str = "auto"


@dataclass(frozen=True)
class Surroundings:
    """What must not matter. `before` mates are queued ahead of the subject, `after` behind it; `alike` mates begin with
    that many of its tokens, and find them in the prefix index if it is warm."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    chunk: int = 512
    page_size: int = 8
    threads: int = 1
    warm: bool = False
    pool_tokens: int = 8192
    steps_ahead: int = 0
    alike: tuple[int, ...] = ()
    max_len: int = MAX_LEN


@dataclass
class Run:
    """The subject's tokens, its logits as bytes, and how often the engine preempted somebody."""

    tokens: list[int] = field(default_factory=list)
    logits: list[bytes] = field(default_factory=list)
    preemptions: int = 0


@functools.cache
def model_file(weights: TensorType) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="octavo-tiny-"))
    return write_gguf_file(MODELS["tied"], folder / f"{weights.name}.gguf", weights)


def make_engine(kind: Kind, around: Surroundings) -> Engine:
    stored = KV_TYPES["bf16" if kind.kv == "auto" else kind.kv]
    per_token = 2 * 2 * 2 * stored.head_bytes(16)  # K and V, layers, kv heads
    config = EngineConfig(
        model=str(model_file(kind.weights)),
        isa=kind.level,
        activations=kind.activations,
        kv_cache_dtype=kind.kv,
        threads=around.threads,
        page_size=around.page_size,
        max_model_len=around.max_len,
        max_num_seqs=48,
        max_num_batched_tokens=around.chunk,
        kv_cache_memory_bytes=per_token * around.pool_tokens,
    )
    return build_engine(config)


def prompt(seed: int, length: int) -> np.ndarray:
    return np.random.RandomState(seed).randint(3, VOCAB, length).astype(np.int32)


def run(kind: Kind, around: Surroundings, length: int, params: SamplingParams) -> Run:
    """Serve the subject among its mates. Mates draw at random with seeds of their own."""
    engine = make_engine(kind, around)
    engine.executor.capture_logits = True
    mate = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    subject = Request(SUBJECT, prompt(length, length), params, seed=42, arrival_s=0.0)
    if around.warm:
        engine.add(Request(SUBJECT + 1, subject.prompt, mate, seed=1, arrival_s=0.0))
        drain(engine)
    for index, tokens in enumerate(around.before):
        # Every other mate begins like the subject, so that it shares pages with it.
        own = prompt(index, tokens)
        own[: tokens // 2 * (index % 2)] = np.resize(subject.prompt, tokens // 2 * (index % 2))
        engine.add(Request(index, own, mate, seed=index, arrival_s=0.0))
    for index, tokens in enumerate(around.alike):
        own = np.concatenate([subject.prompt[:tokens], prompt(index, 3 + index)])
        engine.add(Request(900 + index, own, mate, seed=index, arrival_s=0.0))
    for _ in range(around.steps_ahead):
        drain(engine, steps=1)
    engine.add(subject)
    for index, tokens in enumerate(around.after):
        engine.add(Request(500 + index, prompt(500 + index, tokens), mate, seed=index, arrival_s=0.0))
    return drain(engine)


def drain(engine: Engine, steps: int = 100_000) -> Run:
    """Up to `steps` steps, keeping what the subject drew."""
    seen = Run()
    while engine.busy and steps:
        steps -= 1
        step = engine.scheduler.schedule(0.0)
        assert step is not None, "work is left but nothing is scheduled"
        result = engine.executor.submit(step).result()
        outputs = engine.scheduler.apply(step, result, 0.0)
        assert result.outputs is not None
        for row in np.flatnonzero(outputs.request_ids == SUBJECT).tolist():
            seen.tokens.append(int(outputs.tokens[row]))
            seen.logits.append(result.outputs["logits"][row].tobytes())
    seen.preemptions = engine.stats().preemptions
    return seen


@functools.cache
def alone(kind: Kind, length: int, params_name: str, max_len: int = MAX_LEN) -> Run:
    return run(kind, Surroundings(max_len=max_len), length, {"greedy": GREEDY, "seeded": SEEDED}[params_name])


def assert_same(kind: Kind, around: Surroundings, length: int, params_name: str) -> Run:
    expected = alone(kind, length, params_name, around.max_len)
    seen = run(kind, around, length, {"greedy": GREEDY, "seeded": SEEDED}[params_name])
    assert len(expected.tokens) == 6
    assert seen.tokens == expected.tokens
    assert seen.logits == expected.logits
    return seen


lengths = st.integers(1, 100)
crowds = st.lists(lengths, max_size=20).map(tuple)
surroundings = st.builds(
    Surroundings,
    before=crowds,
    after=crowds,
    chunk=st.sampled_from([16, 64, 512]),
    page_size=st.sampled_from([4, 8, 16]),
    threads=st.sampled_from([1, 2]),
    warm=st.booleans(),
    pool_tokens=st.sampled_from([MAX_LEN, 256, 8192]),
    steps_ahead=st.integers(0, 8),
)
# What a width of 64 divides into; kernels of the others are cut in csrc/tests/linear_test.cpp.
WEIGHTS = [
    TensorType.Q4_1,
    TensorType.Q4_0,
    TensorType.Q8_0,
    TensorType.Q5_0,
    TensorType.IQ4_NL,
    TensorType.MXFP4,
    TensorType.BF16,
    TensorType.F32,
]
kinds = st.builds(
    Kind,
    level=st.sampled_from(LEVELS),
    weights=st.sampled_from(WEIGHTS),
    activations=st.sampled_from(["auto", "f32"]),
    kv=st.sampled_from(["auto", "f32", "f16", "int8"]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kinds, surroundings, st.sampled_from([1, 7, 8, 9, 31, 64, 100]), st.sampled_from(["greedy", "seeded"]))
def test_same_logits_in_any_surroundings(kind: Kind, around: Surroundings, length: int, params_name: str) -> None:
    assert_same(kind, around, length, params_name)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kinds, surroundings, lengths, st.sampled_from(["greedy", "seeded"]))
def test_same_logits_in_many_surroundings(kind: Kind, around: Surroundings, length: int, params_name: str) -> None:
    assert_same(kind, around, length, params_name)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("params_name", ["greedy", "seeded"])
def test_each_surrounding_on_each_level(level: str, params_name: str) -> None:
    """The cases that the promise names, one after another, so that none depends on what hypothesis draws."""
    kind, length = Kind(level, TensorType.Q4_1), 70
    crowd = tuple(5 + 7 * i % 60 for i in range(20))
    for around in (
        Surroundings(before=crowd, after=crowd),
        Surroundings(chunk=16),
        Surroundings(chunk=64),
        Surroundings(page_size=4),
        Surroundings(page_size=16),
        Surroundings(warm=True),
        Surroundings(threads=2, before=crowd),
        Surroundings(threads=2, warm=True, chunk=16, page_size=4),
    ):
        assert_same(kind, around, length, params_name)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kv", ["auto", "int8"])
def test_preempted(level: str, kv: str) -> None:
    """The subject comes last into a pool that can't hold everybody: it is preempted, and nobody could tell."""
    around = Surroundings(before=(40, 40, 40), pool_tokens=160, threads=2)
    seen = assert_same(Kind(level, TensorType.Q4_1, kv=kv), around, 31, "seeded")
    assert seen.preemptions > 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kv", KV_TYPES)
def test_pages_that_many_read(level: str, kv: str) -> None:
    """Attention reads a span of 256 tokens once for all whose block tables begin alike: some with the subject to its
    end, some a part of the way, some nearly a span."""
    kind, length = Kind(level, TensorType.Q4_1, kv=kv), 540
    alike = (539, 530, 512, 513, 300, 256, 255, 520)
    for page_size, threads, chunk in ((4, 2, 64), (16, 1, 512)):
        around = Surroundings(
            alike=alike, warm=True, page_size=page_size, threads=threads, chunk=chunk, steps_ahead=2, max_len=640
        )
        assert_same(kind, around, length, "seeded")
