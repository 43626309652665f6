"""KV groups share one pool: every logit is bit for bit that of one group that keeps everything, on every level, while
pages behind a window are overwritten and their entries in the block table hold nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests.backends.harness import GREEDY, LEVELS, TinyDecoder, backend_of, small_limits

from octavo.backends.ops import AttentionOp, Batch, Buffer, Floats, KvSpec, Plan, UnsupportedError

SIZE, MAX_BLOCKS, WINDOW = 4, 160, 11
MODEL = TinyDecoder(layers=3)
#: The layers' windows, groups and places in them.
WINDOWS, PLACES = (WINDOW, 0, WINDOW), ((0, 0), (1, 0), (0, 1))


@dataclass
class Placed:
    """A builder that gives a model's layers windows, and places in groups."""

    inner: Any
    places: tuple[tuple[int, int], ...]
    windows: tuple[int, ...] = WINDOWS

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def rope_and_store(self, q: Buffer, k: Buffer, v: Buffer, op: AttentionOp) -> None:
        self.inner.rope_and_store(q, k, v, self._placed(op))

    def attention(self, q: Buffer, op: AttentionOp) -> Buffer:
        return self.inner.attention(q, self._placed(op))  # type: ignore[no-any-return]

    def _placed(self, op: AttentionOp) -> AttentionOp:
        group, layer = self.places[op.layer]
        return replace(op, group=group, layer=layer, window=self.windows[op.layer])


def make(level: str, groups: tuple[KvSpec, ...], places: tuple[tuple[int, int], ...]) -> Plan:
    limits = replace(small_limits(MODEL.vocab, 64, 4), max_blocks=MAX_BLOCKS, num_pages=900, groups=len(groups))
    builder = Placed(backend_of(level).builder(limits, *groups), places)
    MODEL.record(builder)
    return builder.finish()  # type: ignore[no-any-return]


class Runner:
    """Sequences of one token list each, fed chunk by chunk; `windows` of the groups, whose passed pages are wrecked."""

    def __init__(self, plan: Plan, windows: tuple[int, ...]) -> None:
        self._plan = plan
        self._windows = windows
        self._pages = np.random.default_rng(3).permutation(900).tolist()
        self._wreck = self._pages.pop()
        self._tables = np.full((len(windows), 4, MAX_BLOCKS), -1, np.int32)
        self._computed = [0] * 4

    def step(self, chunks: list[tuple[int, np.ndarray]]) -> Floats:
        """The logits of each chunk's last token. chunks: (sequence, its next tokens)."""
        counts = [len(tokens) for _, tokens in chunks]
        ends = [self._computed[s] + len(tokens) for s, tokens in chunks]
        for (s, _), end in zip(chunks, ends, strict=True):
            for table in self._tables:
                for block in range(-(-self._computed[s] // SIZE), -(-end // SIZE)):
                    table[s, block] = self._pages.pop()
        starts = np.concatenate([[0], np.cumsum(counts)])
        positions = np.concatenate([np.arange(end - n, end) for n, end in zip(counts, ends, strict=True)])
        batch = Batch(
            num_tokens=sum(counts),
            num_seqs=len(chunks),
            num_outputs=len(chunks),
            tokens=np.concatenate([tokens for _, tokens in chunks]).astype(np.int32),
            positions=positions[None].astype(np.int32),
            token_seq=np.repeat(np.arange(len(chunks)), counts).astype(np.int32),
            query_start=starts.astype(np.int32),
            context_len=np.array(ends, np.int32),
            block_table=np.ascontiguousarray(self._tables[:, [s for s, _ in chunks]]),
            output_rows=(starts[1:] - 1).astype(np.int32),
            output_slots=np.array([s for s, _ in chunks], np.int32),
            output_targets=np.full(len(chunks), -1, np.int32),
            capture_logits=True,
        )
        logits = self._plan.run(batch).logits
        assert logits is not None
        for (s, _), end in zip(chunks, ends, strict=True):
            self._computed[s] = end
            self._free_behind(s, end)
        return logits.copy()

    def _free_behind(self, s: int, computed: int) -> None:
        for table, window in zip(self._tables, self._windows, strict=True):
            for block in range(max(0, computed + 1 - window) // SIZE if window else 0):
                if table[s, block] >= 0:
                    self._plan.copy_pages(np.array([[self._wreck, table[s, block]]], np.int32))
                    self._pages.insert(0, int(table[s, block]))
                    table[s, block] = -1


def logits_of(runner: Runner, plan: Plan, steps: list[list[tuple[int, int]]]) -> list[Floats]:
    """steps: lists of (sequence, tokens in its chunk)."""
    texts = np.random.default_rng(1).integers(0, MODEL.vocab, (4, 640))
    for slot in range(4):
        plan.set_slot(slot, GREEDY, texts[slot, :1].astype(np.int32), 1)
    at, found = [0] * 4, []
    for step in steps:
        chunks = [(s, texts[s, at[s] : at[s] + count]) for s, count in step]
        found.append(runner.step(chunks))
        for s, count in step:
            at[s] += count
    return found


STEPS = [
    [(0, 5), (1, 40)],
    [(0, 30), (2, 3), (1, 1)],
    [(3, 60)],
    [(0, 1), (1, 1), (2, 1), (3, 1)],
    *[[(3, 60), (0, 1)]] * 5,
    *[[(0, 1), (1, 1), (2, 1), (3, 1)]] * 30,
    [(0, 17), (1, 23), (2, 9)],
]


@pytest.mark.parametrize("level", ["reference", *LEVELS])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_groups_and_wrecked_pages_do_not_show(level: str, dtype: Any) -> None:
    one = KvSpec(3, MODEL.kv_heads, MODEL.head_dim, SIZE, dtype)
    groups = (replace(one, layers=2, window=WINDOW), replace(one, layers=1))
    plan = make(level, (one,), ((0, 0), (0, 1), (0, 2)))
    expected = logits_of(Runner(plan, (0,)), plan, STEPS)
    plan = make(level, groups, PLACES)
    actual = logits_of(Runner(plan, (WINDOW, 0)), plan, STEPS)
    for step, (one_group, two_groups) in enumerate(zip(expected, actual, strict=True)):
        assert np.array_equal(one_group, two_groups), f"step {step}"


def test_what_was_wrecked_would_show() -> None:
    """The test above fails if a page goes a token too early."""
    one = KvSpec(3, MODEL.kv_heads, MODEL.head_dim, SIZE, "f32")
    plan = make("reference", (one,), ((0, 0), (0, 1), (0, 2)))
    expected = logits_of(Runner(plan, (0,)), plan, STEPS)
    plan = make("reference", (replace(one, layers=2, window=WINDOW), replace(one, layers=1)), PLACES)
    actual = logits_of(Runner(plan, (WINDOW - SIZE, 0)), plan, STEPS)
    assert any(not np.array_equal(a, b) for a, b in zip(expected, actual, strict=True))


def test_groups_that_cannot_share_pages_are_refused() -> None:
    one = KvSpec(1, 1, 16, 8, "f32")
    for other in (replace(one, page_size=4), replace(one, dtype="bf16")):
        with pytest.raises(UnsupportedError, match="KV groups of 2 types or page sizes can't share pages"):
            backend_of(LEVELS[0]).builder(small_limits(32), one, other)
    with pytest.raises(UnsupportedError, match="window is -1"):
        backend_of(LEVELS[0]).builder(small_limits(32), replace(one, window=-1))


def test_a_layer_that_sees_more_than_its_group_keeps_is_refused() -> None:
    for window, kept in ((0, 5), (6, 5)):
        kv = KvSpec(1, MODEL.kv_heads, MODEL.head_dim, SIZE, "f32", window=kept)
        builder = backend_of(LEVELS[0]).builder(small_limits(MODEL.vocab), kv)
        TinyDecoder(layers=1).record(Placed(builder, ((0, 0),), (window,)))
        with pytest.raises(ValueError, match=r"a layer sees (6|all) tokens; its KV group keeps 5"):
            builder.finish()


def test_a_block_table_without_all_groups_is_refused() -> None:
    one = KvSpec(3, MODEL.kv_heads, MODEL.head_dim, SIZE, "f32")
    plan = make(LEVELS[0], (replace(one, layers=2, window=WINDOW), replace(one, layers=1)), PLACES)
    runner = Runner(plan, (0,))
    with pytest.raises(ValueError, match="block_table has length 1 along axis 0; it needs at least 2"):
        logits_of(runner, plan, STEPS)
    runner = Runner(plan, (WINDOW, 0))
    logits_of(runner, plan, STEPS[:2])
    runner._tables[1, 0, 0] = -1
    with pytest.raises(ValueError, match="block_table of KV group 1, sequence 0, block 0, is page -1"):
        runner.step([(0, np.zeros(1, np.int64))])
