"""What a plan must not be led into: every wrong entry is named, and the plan works on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.backends.harness import GREEDY, Runner, TinyDecoder, small_limits

from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.ops import Batch, Dry, KvSpec, SlotParams, UnsupportedError, Weight
from octavo.backends.reference.plan import ReferenceBackend
from octavo.formats.tensor import Tensor, TensorType


@pytest.fixture(scope="module")
def runner() -> Runner:
    """Two sequences with 11 and 5 tokens, ready for a first step."""
    made = TinyDecoder().runner("generic")
    return made


def fresh_batch(runner: Runner) -> Batch:
    runner.add(0, list(range(11)))
    runner.add(1, list(range(5)))
    for sequence in runner.sequences.values():
        sequence.computed = 0
    return runner.fill([(0, 11), (1, 5)])


def setting(name: str, index: Any, value: int) -> Callable[[Batch], None]:
    def change(batch: Batch) -> None:
        getattr(batch, name)[index] = value

    return change


WRONG_ENTRIES = {
    "tokens[3] is 160": setting("tokens", 3, 160),
    "tokens[15] is -1": setting("tokens", 15, -1),
    "positions[4] is 7": setting("positions", (0, 4), 7),
    "token_seq[12] is 0": setting("token_seq", 12, 0),
    "query_start[0] is 1": setting("query_start", 0, 1),
    "query_start[1] is 0": setting("query_start", 1, 0),
    "positions[11] is 0": setting("query_start", 2, 15),
    "query_start[1] is 2000000000": setting("query_start", 1, 2_000_000_000),
    "context_len[0] is 10": setting("context_len", 0, 10),
    "context_len[1] is 2147483647": setting("context_len", 1, 2**31 - 1),
    "context_len[1] is -5": setting("context_len", 1, -5),
    "block 1, is page 1024": setting("block_table", (0, 0, 1), 1024),
    "block 0, is page -1": setting("block_table", (0, 1, 0), -1),
    "output_rows[1] is 16": setting("output_rows", 1, 16),
    "output_rows[0] is -1": setting("output_rows", 0, -1),
    "output_slots[0] is 48": setting("output_slots", 0, 48),
    "output_slots[1] is 30; that slot was never set": setting("output_slots", 1, 30),
    "output_slots[1] is 0; that slot already": setting("output_slots", 1, 0),
    "num_tokens is 257": lambda batch: setattr(batch, "num_tokens", 257),
    "num_seqs is 49": lambda batch: setattr(batch, "num_seqs", 49),
    "num_outputs is 257": lambda batch: setattr(batch, "num_outputs", 257),
    "output_targets[1] is 160": setting("output_targets", 1, 160),
    "output_targets[0] is -2": setting("output_targets", 0, -2),
}


@pytest.mark.parametrize("message", WRONG_ENTRIES)
def test_wrong_entries(runner: Runner, message: str) -> None:
    batch = fresh_batch(runner)
    # Room for the wrong sizes, so that it is the limit that refuses them and not an array's end.
    batch = replace(
        batch,
        tokens=np.resize(batch.tokens, 300),
        positions=np.resize(batch.positions, (1, 300)),
        token_seq=np.resize(batch.token_seq, 300),
        query_start=np.resize(batch.query_start, 60),
        context_len=np.resize(batch.context_len, 60),
        block_table=np.resize(batch.block_table, (1, 60, batch.block_table.shape[2])),
        output_rows=np.resize(batch.output_rows, 300),
        output_slots=np.resize(batch.output_slots, 300),
        output_targets=np.resize(batch.output_targets, 300),
        capture_logits=False,
    )
    WRONG_ENTRIES[message](batch)
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        runner.plan.run(batch)


def test_the_plan_works_on_after_a_refusal(runner: Runner) -> None:
    expected = runner.plan.run(fresh_batch(runner)).tokens.tolist()
    batch = fresh_batch(runner)
    batch.tokens[0] = -1
    with pytest.raises(ValueError, match="tokens"):
        runner.plan.run(batch)
    assert runner.plan.run(fresh_batch(runner)).tokens.tolist() == expected


@pytest.mark.parametrize(
    ("name", "array", "error"),
    [
        ("tokens", np.zeros(96, np.int64), TypeError),
        ("tokens", np.zeros((96, 1), np.int32), TypeError),
        ("tokens", np.zeros(15, np.int32), ValueError),
        ("tokens", np.zeros(64, np.int32)[::2], ValueError),
        ("positions", np.zeros(96, np.int32), TypeError),
        ("positions", np.zeros((1, 15), np.int32), ValueError),
        ("positions", np.zeros((0, 96), np.int32), ValueError),
        ("token_seq", np.zeros(96, np.float32), TypeError),
        ("query_start", np.zeros(2, np.int32), ValueError),
        ("context_len", np.zeros(1, np.int32), ValueError),
        ("block_table", np.zeros((1, 1, 160), np.int32), ValueError),
        ("block_table", np.zeros((1, 48, 1), np.int32), ValueError),
        ("block_table", np.asfortranarray(np.zeros((1, 48, 160), np.int32)), ValueError),
        ("output_rows", np.zeros(1, np.int32), ValueError),
        ("output_slots", np.zeros(1, np.uint32), TypeError),
        ("output_targets", np.zeros(1, np.int32), ValueError),
        ("tokens", None, TypeError),
    ],
)
def test_wrong_arrays(runner: Runner, name: str, array: Any, error: type[Exception]) -> None:
    batch = replace(fresh_batch(runner), capture_logits=False, **{name: array})
    with pytest.raises(error):
        runner.plan.run(batch)


@pytest.mark.parametrize(
    ("slot", "changes", "tokens", "prompt_len", "message"),
    [
        (48, {}, [1], 1, "slot is 48"),
        (-1, {}, [1], 1, "slot is -1"),
        (0, {}, [160], 1, "tokens holds token id 160"),
        (0, {}, [-1], 1, "tokens holds token id -1"),
        (0, {}, [1, 2], 3, "prompt_len is 3"),
        (0, {"eos_ids": (500,)}, [1], 1, "eos_ids holds token id 500"),
        (0, {"allowed_ids": (1, 160)}, [1], 1, "allowed_ids holds token id 160"),
        (0, {"allowed_ids": ()}, [1], 1, "allowed_ids"),
        (0, {"bad_words": ((160,),)}, [1], 1, "bad_words holds token id 160"),
        (0, {"bad_words": ((1, -1),)}, [1], 1, "bad_words holds token id -1"),
        (0, {"dry": Dry(1.0, breakers=((160,),))}, [1], 1, "dry breakers holds token id 160"),
        (0, {"dry": Dry(-1.0)}, [1], 1, "dry multiplier is -1"),
        (0, {"dry": Dry(1.0, base=0.5)}, [1], 1, "dry base is 0.5"),
        (0, {"dry": Dry(1.0, allowed_length=0)}, [1], 1, "dry allowed_length is 0"),
        (0, {"dry": Dry(1.0, last_n=-2)}, [1], 1, "dry last_n is -2"),
        (0, {"xtc_probability": 1.5}, [1], 1, "xtc_probability is 1.5"),
        (0, {"xtc_threshold": float("nan")}, [1], 1, "xtc_threshold is nan"),
        (0, {"prompt_logprobs": 21}, [1], 1, "prompt_logprobs is 21"),
        (0, {"logit_bias": {160: 1.0}}, [1], 1, "bias_ids holds token id 160"),
        (0, {"temperature": float("nan")}, [1], 1, "temperature is"),
        (0, {"temperature": -1.0}, [1], 1, "temperature is"),
        (0, {"top_k": -1}, [1], 1, "top_k is"),
        (0, {"top_p": 0.0}, [1], 1, "top_p is"),
        (0, {"min_p": 1.5}, [1], 1, "min_p is"),
        (0, {"repetition": 0.0}, [1], 1, "repetition is"),
        (0, {"logprobs": 21}, [1], 1, "logprobs is 21"),
    ],
)
def test_wrong_slots(
    runner: Runner, slot: int, changes: dict[str, Any], tokens: list[int], prompt_len: int, message: str
) -> None:
    params = replace(SlotParams(seed=1), **changes)
    with pytest.raises(ValueError, match=message):
        runner.plan.set_slot(slot, params, np.array(tokens, np.int32), prompt_len)


def test_wrong_page_copies(runner: Runner) -> None:
    for pair in ([0, 1024], [-1, 0]):
        with pytest.raises(ValueError, match="can't be copied"):
            runner.plan.copy_pages(np.array([pair], np.int32))
    with pytest.raises(ValueError, match="two columns"):
        runner.plan.copy_pages(np.zeros((1, 3), np.int32))


def test_a_seed_of_any_size(runner: Runner) -> None:
    for seed in (-(2**63), 2**64 - 1):
        runner.plan.set_slot(0, replace(GREEDY, seed=seed), np.array([1], np.int32), 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threads": 0}, "threads is 0"),
        ({"threads": 100_000}, "threads is 100000"),
        ({"threads": 1, "isa": "sse9"}, "sse9.*supported here are"),
        ({"threads": 1, "activations": "int4"}, "int4.*supported are"),
    ],
)
def test_unsupported_backends(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        CpuBackend(**arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "fp8"}, "KV type is 'fp8'; supported are f32, bf16, f16, int8"),
        ({"page_size": 7}, "page_size is 7"),
        ({"head_dim": 24}, "head_dim is 24"),
        ({"head_dim": 512}, "head_dim is 512"),
    ],
)
def test_unsupported_kv(changes: dict[str, Any], message: str) -> None:
    kv = replace(KvSpec(1, 1, 16, 8, "f32"), **changes)
    with pytest.raises(UnsupportedError, match=message):
        CpuBackend(1).builder(small_limits(32), kv)


def test_a_kv_type_that_the_reference_does_not_have() -> None:
    with pytest.raises(UnsupportedError, match="KV type is 'fp8'; supported are f32, bf16, f16, int8"):
        ReferenceBackend().builder(small_limits(32), replace(KvSpec(1, 1, 16, 8, "f32"), dtype="fp8"))  # type: ignore[arg-type]


def test_a_matrix_that_can_not_be_multiplied_that_way() -> None:
    builder = CpuBackend(1, activations="int8").builder(small_limits(32), KvSpec(1, 1, 16, 8, "f32"))
    builder.embed(Weight(Tensor("embed", TensorType.F32, (32, 64), np.zeros((32, 256), np.uint8))), 1.0)
    with pytest.raises(UnsupportedError, match=r"'embed' \(F32.*activations int8"):
        builder.finish()


@pytest.mark.parametrize("rows", [31, 33])
def test_a_matrix_with_too_few_rows_or_bytes(rows: int) -> None:
    builder = CpuBackend(1).builder(small_limits(32), KvSpec(1, 1, 16, 8, "f32"))
    row_bytes = 256 if rows < 32 else 252
    data = np.zeros((rows, row_bytes), np.uint8)
    builder.embed(Weight(Tensor("embed", TensorType.F32, (32, 64), data)), 1.0)
    with pytest.raises(UnsupportedError, match="embed"):
        builder.finish()
