"""Steps change the executor's rows as they say, and the plan sees the batch they describe."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from octavo.backends.ops import Batch, Dry, PlanLimits, Sampled, SlotParams
from octavo.engine.params import ParamError, SamplingParams
from octavo.engine.step import SequenceStart, Step
from octavo.runtime.executor import Executor, StepError, slot_params

LIMITS = PlanLimits(max_tokens=16, max_seqs=4, max_blocks=6, num_pages=32, vocab=100)
NONE = np.empty(0, np.int32)


class RecordingPlan:
    """Remembers what it was told; draws 50 + slot."""

    def __init__(self) -> None:
        self.slots: list[tuple[int, SlotParams, list[int], int]] = []
        self.copies: list[list[int]] = []
        self.batches: list[Batch] = []
        self.fails = False

    def set_slot(self, slot: int, params: SlotParams, tokens: np.ndarray, prompt_len: int) -> None:
        self.slots.append((slot, params, tokens.tolist(), prompt_len))

    def copy_pages(self, pairs: np.ndarray) -> None:
        assert pairs.flags.c_contiguous
        self.copies += pairs.tolist()

    def run(self, batch: Batch) -> Sampled:
        if self.fails:
            raise RuntimeError("out of luck")
        self.batches.append(copy.deepcopy(batch))
        return Sampled(50 + batch.output_slots[: batch.num_outputs])


def step(slots: list[int], num_tokens: list[int], num_computed: list[int], sample: list[bool], **changes) -> Step:
    fields = {
        "step_id": 0,
        "released": (),
        "starts": (),
        "append_slots": NONE,
        "append_pages": NONE,
        "copies": np.empty((0, 4), np.int32),
        "slots": np.array(slots, np.int32),
        "num_tokens": np.array(num_tokens, np.int32),
        "num_computed": np.array(num_computed, np.int32),
        "sample": np.array(sample, np.bool_),
        "num_tokens_total": sum(num_tokens),
    }
    return Step(**{**fields, **changes})


def start(slot: int, tokens: list[int], pages: list[int], **params) -> SequenceStart:
    return SequenceStart(
        slot, np.array(tokens, np.int32), len(tokens), np.array(pages, np.int32), SamplingParams(**params), 7, 1
    )


def executor() -> tuple[Executor, RecordingPlan]:
    plan = RecordingPlan()
    return Executor(plan, LIMITS, max_model_len=24, eos_ids=(2, 3)), plan


def seen(batch: Batch) -> dict[str, list]:
    t, s, r = batch.num_tokens, batch.num_seqs, batch.num_outputs
    return {
        "tokens": batch.tokens[:t].tolist(),
        "positions": batch.positions[0, :t].tolist(),
        "token_seq": batch.token_seq[:t].tolist(),
        "query_start": batch.query_start[: s + 1].tolist(),
        "context_len": batch.context_len[:s].tolist(),
        "output_rows": batch.output_rows[:r].tolist(),
        "output_slots": batch.output_slots[:r].tolist(),
    }


def test_a_mixed_step_then_pure_decode() -> None:
    run, plan = executor()
    first = step(
        [2, 0],
        [3, 4],
        [0, 2],
        [True, False],
        starts=(start(2, [11, 12, 13], []), start(0, [21, 22, 23, 24, 25, 26, 27], [5])),
        append_slots=np.array([2, 0, 0], np.int32),
        append_pages=np.array([8, 9, 10], np.int32),
    )
    result = run.submit(first).result()
    assert result.tokens.tolist() == [[52]]
    assert result.counts.tolist() == [1]
    assert 0 <= result.forward_s <= result.total_s
    assert seen(plan.batches[0]) == {
        "tokens": [11, 12, 13, 23, 24, 25, 26],
        "positions": [0, 1, 2, 2, 3, 4, 5],
        "token_seq": [0, 0, 0, 1, 1, 1, 1],
        "query_start": [0, 3, 7],
        "context_len": [3, 6],
        "output_rows": [2],
        "output_slots": [2],
    }
    assert plan.batches[0].block_table[0, 0, 0] == 8
    assert plan.batches[0].block_table[0, 1, :3].tolist() == [5, 9, 10]

    run.submit(step([0, 2], [1, 1], [6, 3], [True, True]))
    assert seen(plan.batches[1]) == {
        "tokens": [27, 52],  # the token drawn for slot 2 is fed
        "positions": [6, 3],
        "token_seq": [0, 1],
        "query_start": [0, 1, 2],
        "context_len": [7, 4],
        "output_rows": [0, 1],
        "output_slots": [0, 2],
    }


def test_copies_move_bytes_and_the_block_table() -> None:
    run, plan = executor()
    run.submit(
        step(
            [1],
            [1],
            [5],
            [True],
            starts=(start(1, [1, 2, 3, 4, 5, 6], [4, 7]),),
            copies=np.array([[1, 1, 7, 20]], np.int32),
        )
    )
    assert plan.copies == [[7, 20]]
    assert plan.batches[0].block_table[0, 0, :2].tolist() == [4, 20]


def test_a_slot_taken_again_forgets_its_last_sequence() -> None:
    run, plan = executor()
    run.submit(step([0], [3], [0], [True], starts=(start(0, [1, 2, 3], [9]),)))
    run.submit(step([0], [1], [0], [True], released=(0,), starts=(start(0, [8], [1]),)))
    assert seen(plan.batches[1])["tokens"] == [8]
    assert plan.batches[1].block_table[0, 0, 0] == 1
    assert [slot for slot, *_ in plan.slots] == [0, 0]


def test_a_failed_pass_is_a_step_error_and_draws_nothing() -> None:
    run, plan = executor()
    run.submit(step([0], [1], [0], [True], starts=(start(0, [1], [9]),)))
    plan.fails = True
    with pytest.raises(StepError, match=r"step 0 failed: RuntimeError: out of luck"):
        run.submit(step([0], [1], [1], [True]))
    plan.fails = False
    run.submit(step([0], [1], [1], [True]))
    assert seen(plan.batches[-1])["tokens"] == [50]


def test_results_outlive_the_plans_arrays() -> None:
    run, plan = executor()
    tokens, logprobs = np.array([5], np.int32), np.array([-1.0], np.float32)
    top_ids, top_logprobs = np.array([[5, 6]], np.int32), np.array([[-1.0, -2.0]], np.float32)
    plan.run = lambda batch: Sampled(tokens, logprobs, top_ids, top_logprobs)  # type: ignore[method-assign]
    result = run.submit(step([0], [1], [0], [True], starts=(start(0, [1], [9]),))).result()
    for array in (tokens, logprobs, top_ids, top_logprobs):
        array[:] = 0
    assert result.tokens.tolist() == [[5]]
    assert result.logprobs is not None
    assert result.logprobs.tolist() == [[-1.0]]
    assert result.top_ids is not None
    assert result.top_ids.tolist() == [[[5, 6]]]


def test_min_tokens_bans_every_id_that_would_end_the_request() -> None:
    eos = frozenset({2, 3})
    assert slot_params(SamplingParams(min_tokens=2, stop_token_ids=(9,)), 0, 0, eos).eos_ids == (2, 3, 9)
    ignoring = SamplingParams(min_tokens=2, stop_token_ids=(9,), ignore_eos=True)
    assert slot_params(ignoring, 0, 0, eos).eos_ids == (9,)
    assert slot_params(SamplingParams(stop_token_ids=(9,)), 0, 0, eos).eos_ids == ()
    assert slot_params(SamplingParams(top_k=-1), 0, 0, eos).top_k == 0


def test_words_reach_the_sampler_as_ids_or_not_at_all() -> None:
    made = SamplingParams(bad_words=[[5], [6, 7]], dry_multiplier=1.5, dry_sequence_breakers=[[9]])  # type: ignore[arg-type]
    params = slot_params(made, 0, 0, frozenset())
    assert params.bad_words == ((5,), (6, 7))
    assert params.dry == Dry(1.5, breakers=((9,),))
    assert slot_params(SamplingParams(), 0, 0, frozenset()).dry is None
    for wrong in (SamplingParams(bad_words=("x",)), SamplingParams(dry_multiplier=1.0)):
        with pytest.raises(ParamError, match="token ids only"):
            slot_params(wrong, 0, 0, frozenset())
