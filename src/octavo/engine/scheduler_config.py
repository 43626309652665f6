"""What a scheduler is built from."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.engine.groups import KvGroups
from octavo.engine.policies import BATCH_POLICIES, KV_POLICIES, POLICIES


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Sizes in tokens unless named otherwise. Raises ValueError when a value is out of its limits.

    max_model_len: longest prompt plus answer of a sequence. max_num_seqs: most sequences that run at once, and executor
    slots. max_num_batched_tokens: most tokens in one step. eos_ids: tokens that end an answer.
    policy: order of the waiting, "fcfs", "priority" or "fair" (engine/policies.py).
    target_itl_s: longest gap between two tokens of a running stream that prefill may cause; 0: relative to the gap
    without prefill, but not below a gap that nobody sees (engine/cost.py).
    prefix_key: 16 to 64 secret bytes that key the prefix index; None draws fresh ones.
    kv_policy, batch_policy: how memory is given out and when batches change; all but "paged" and "continuous" are there
    for comparison (engine/historical). static_padding: a static batch goes on computing rows that have finished.
    windows: one for each KV group, how many tokens its layers see; 0: all. A token takes a slot in every group.
    ageing_s: under the priority policy one step of priority weighs as much as so many seconds of waiting.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    page_size: int
    num_pages: int
    eos_ids: frozenset[int] = frozenset()
    prefix_caching: bool = True
    policy: str = "fcfs"
    target_itl_s: float = 0.0
    prefix_key: bytes | None = None
    ageing_s: float = 30.0
    kv_policy: str = "paged"
    batch_policy: str = "continuous"
    static_padding: bool = True
    windows: tuple[int, ...] = (0,)

    @property
    def historical(self) -> bool:
        return self.kv_policy != "paged" or self.batch_policy != "continuous"

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "page_size", "num_pages"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("target_itl_s", "ageing_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
        for name, choices in (("policy", POLICIES), ("kv_policy", KV_POLICIES), ("batch_policy", BATCH_POLICIES)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}")
        if self.historical and self.prefix_caching:
            raise ValueError(
                f"prefix_caching is on, but kv_policy {self.kv_policy} with batch_policy {self.batch_policy} has none; "
                "turn it off"
            )
        if self.historical and self.windows != (0,):
            raise ValueError(
                f"windows are {self.windows}, but kv_policy {self.kv_policy} with batch_policy {self.batch_policy} has "
                "one group without a window; leave them out"
            )
        groups = KvGroups(self.page_size, self.windows, chunk=1)
        if self.num_pages < groups.pages_for(self.max_model_len):
            longest = groups.longest(self.num_pages, self.max_model_len)
            raise ValueError(
                f"the pool holds {longest} tokens, less than one sequence of max_model_len "
                f"{self.max_model_len}; lower max_model_len or give the pool more memory"
            )
        if self.kv_policy == "buddy" and self._largest_buddy * self.page_size < self.max_model_len:
            raise ValueError(
                f"the largest power of two in a pool of {self.num_pages} pages holds "
                f"{self._largest_buddy * self.page_size} tokens, less than one sequence of max_model_len "
                f"{self.max_model_len}; lower max_model_len or give the pool more memory"
            )

    @property
    def _largest_buddy(self) -> int:
        return 1 << (self.num_pages.bit_length() - 1)
