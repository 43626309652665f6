"""The native module (csrc/module.cpp). Enumerations are passed as the integers of csrc/kernels.h and csrc/op_rows.h."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

MAX_THREADS: int
MAX_LOGPROBS: int

def supported_levels() -> list[str]: ...
def kv_types() -> list[tuple[str, int, int, int]]: ...
def find_level(name: str) -> str: ...
def rms_norm(level: str, x: Floats, weight: Floats, eps: float, out: Floats, /) -> None: ...
def peak_operations_per_s(level: str, pool: ThreadPool, kind: int, seconds: float) -> float: ...
def memory_bytes_per_s(level: str, pool: ThreadPool, bytes: int, seconds: float) -> float: ...
def cache_bytes_per_s(level: str, pool: ThreadPool, bytes_per_thread: int, seconds: float) -> float: ...

class ThreadPool:
    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...

class RowsShape:
    def __init__(
        self,
        function: int,
        x: int,
        *,
        y: int = -1,
        weight: int = -1,
        bias: int = -1,
        eps: float = 0.0,
        groups: int = 1,
        add: bool = False,
        scale: float = 1.0,
    ) -> None: ...

class RoutingShape:
    def __init__(
        self,
        *,
        experts: int,
        used: int,
        scoring: int,
        normalise: bool,
        scale: float,
        groups: int,
        used_groups: int,
        group_score: int,
    ) -> None: ...

class AttentionShape:
    def __init__(
        self,
        *,
        layer: int,
        q_heads: int,
        window: int,
        scale: float,
        softcap: float,
        amplitude: float,
        norm_eps: float,
        inv_freq: list[float],
        q_norm: list[float],
        k_norm: list[float],
        sinks: list[float],
        group: int = 0,
    ) -> None: ...

class DrySettings:
    def __init__(
        self,
        *,
        multiplier: float,
        base: float,
        allowed_length: int,
        last_n: int,
        breaker_ids: list[int],
        breaker_sequences: list[list[int]],
    ) -> None: ...

class SlotSettings:
    def __init__(
        self,
        *,
        seed: int,
        choice: int,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repetition: float,
        presence: float,
        frequency: float,
        xtc_probability: float,
        xtc_threshold: float,
        logprobs: int,
        processed_logprobs: bool,
        min_tokens: int,
        eos_ids: list[int],
        bias_ids: list[int],
        bias_values: list[float],
        allowed_ids: list[int] | None,
        bad_ids: list[int],
        bad_sequences: list[list[int]],
        dry: DrySettings | None,
        prompt_logprobs: int,
    ) -> None: ...

class Plan:
    def __init__(
        self,
        *,
        level: str,
        pool: ThreadPool,
        max_tokens: int,
        max_seqs: int,
        max_blocks: int,
        num_pages: int,
        page_size: int,
        vocab: int,
        kv_type: int,
        groups: list[tuple[int, int, int, int]],
    ) -> None: ...
    def add_rows(self, width: int) -> int: ...
    def add_prepared(self, kind: int, k: int) -> int: ...
    def add_weight(
        self, format: int, activation: int, n: int, k: int, data: npt.NDArray[np.uint8], row_index: Ints | None
    ) -> int: ...
    def add_vector(self, values: Floats) -> int: ...
    def next_op(self) -> None: ...
    def embed(self, weight: int, scale: float, out: int) -> None: ...
    def add_positions(self, x: int, weight: int) -> None: ...
    def columns(self, sources: list[int], index: Ints, out: int) -> None: ...
    def rows(self, shape: RowsShape, out: int) -> None: ...
    def rows_prepared(self, shape: RowsShape, prepared: int) -> None: ...
    def linear(self, prepared: int, projections: list[tuple[int, int, int]], accumulate: bool) -> None: ...
    def moe(
        self,
        *,
        prepared: int,
        logits: int,
        correction: int,
        experts: list[tuple[int, int, int, int, int, int]],
        routing: RoutingShape,
        gate: int,
        alpha: float,
        limit: float,
        out: int,
    ) -> None: ...
    def rope_and_store(self, q: int, k: int, v: int, shape: AttentionShape) -> None: ...
    def attention(self, q: int, out: int, shape: AttentionShape) -> None: ...
    def keep_outputs(self, rows: list[int]) -> None: ...
    def head(self, norm: RowsShape, weight: int, scale: float, softcap: float) -> None: ...
    def set_slot(self, slot: int, settings: SlotSettings, tokens: Ints, prompt_len: int) -> None: ...
    def copy_pages(self, pairs: Ints) -> None: ...
    def run(
        self,
        num_tokens: int,
        num_seqs: int,
        num_outputs: int,
        tokens: Ints,
        positions: Ints,
        token_seq: Ints,
        query_start: Ints,
        context_len: Ints,
        block_table: Ints,
        output_rows: Ints,
        output_slots: Ints,
        output_targets: Ints,
        out_tokens: Ints,
        out_logprobs: Floats,
        out_top_ids: Ints,
        out_top_logprobs: Floats,
        out_logits: Floats | None,
    ) -> int: ...
    def set_profiling(self, on: bool) -> None: ...
    def profile(self) -> list[tuple[int, str, int, float, float]]: ...
    def profile_ops(self) -> list[tuple[int, str, int, float, float]]: ...
    @property
    def pool_bytes(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...

class ScoredMerges:
    def __init__(self, texts: list[bytes], scores: Floats, kinds: Ints, space_prefix: bool) -> None: ...
    def encode(self, text: bytes) -> list[int]: ...

class Unigram:
    def __init__(
        self, texts: list[bytes], scores: Floats, kinds: Ints, space_prefix: bool, one_space: bool, charsmap: bytes
    ) -> None: ...
    def encode(self, text: bytes) -> list[int]: ...
