"""The CPU device: an ISA level, a thread pool, and the choice of activation types."""

from __future__ import annotations

from octavo import _native
from octavo.backends.cpu.builder import CpuBuilder
from octavo.backends.kv_types import KV_TYPES
from octavo.backends.ops import KvSpec, PlanLimits, UnsupportedError

ACTIVATIONS = ("auto", "f32", "bf16", "int8")
KV_NUMBERS = {name: number for number, name in enumerate(KV_TYPES)}  # of csrc/kernels.h, KvType


class CpuBackend:
    """Kernels of one ISA level on a pool of `threads` threads, of which the caller of `run` is one.

    threads: at least 1. isa: generic, avx2, avx512 or avx512_bf16; None takes OCTAVO_ISA or the best this CPU has.
    activations: auto, f32, bf16 or int8, see builder.py. Raises UnsupportedError with the value and what is supported.
    """

    name = "cpu"

    def __init__(self, threads: int, isa: str | None = None, activations: str = "auto") -> None:
        if not 1 <= threads <= _native.MAX_THREADS:
            raise UnsupportedError(f"threads is {threads}; it must be from 1 to {_native.MAX_THREADS}.")
        if activations not in ACTIVATIONS:
            raise UnsupportedError(f"activations is {activations!r}; supported are {', '.join(ACTIVATIONS)}.")
        try:
            self.level: str = _native.find_level(isa or "")
        except ValueError as error:
            levels = ", ".join(_native.supported_levels())
            raise UnsupportedError(f"{error}; supported here are {levels}.") from None
        try:
            self._pool = _native.ThreadPool(threads)
        except RuntimeError as error:
            raise UnsupportedError(f"threads is {threads}, but the system refused to start them: {error}.") from None
        self._activations = activations
        self.facts = {"backend": "cpu", "isa": self.level, "threads": str(threads), "activations": activations}

    def builder(self, limits: PlanLimits, *kv: KvSpec) -> CpuBuilder:
        """A builder whose page pool is reserved now and backed by memory as pages are written."""
        kinds = {(group.dtype, group.page_size) for group in kv}
        if len(kinds) != 1:
            raise UnsupportedError(f"KV groups of {len(kinds)} types or page sizes can't share pages; give them one.")
        ((dtype, page_size),) = kinds
        if dtype not in KV_TYPES:
            raise UnsupportedError(f"the KV type is {dtype!r}; supported are {', '.join(KV_TYPES)}.")
        try:
            native = _native.Plan(
                level=self.level,
                pool=self._pool,
                max_tokens=limits.max_tokens,
                max_seqs=limits.max_seqs,
                max_blocks=limits.max_blocks,
                num_pages=limits.num_pages,
                page_size=page_size,
                vocab=limits.vocab,
                kv_type=KV_NUMBERS[dtype],
                groups=[(group.layers, group.kv_heads, group.head_dim, group.window) for group in kv],
            )
        except ValueError as error:
            raise UnsupportedError(f"the CPU backend can't hold this model's KV: {error}.") from None
        return CpuBuilder(native, limits, self.level, self._activations)
