"""How large the page pool and the context are: from the memory this process may use, in one place, in one log line."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.engine.groups import KvGroups
from octavo.runtime.cgroup import Room

#: Share of the room left after weights and workspace that the pool takes unless told otherwise: the front process, the
#: tokenizer and whatever else runs here need some too.
POOL_SHARE = 0.6
#: The pool is no larger than so many tokens for each of the sequences that may run, or so many of the longest ones,
#: whichever is more: twice what a ShareGPT conversation has. A small model would otherwise fill most of a machine with
#: old prefixes, since what was once written stays in memory.
USUAL_TOKENS = 512
LONGEST_SEQUENCES = 4
_MIB = 1 << 20


class SizingError(ValueError):
    """An explicit size that does not fit; the message says which would."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked for, and what is known about the model.

    context: tokens the model was trained for. page_bytes: of a page. fixed_bytes: weights still to be packed and
    workspace. windows, chunk: of the KV groups (engine/groups.py), in each of which a token takes a slot.
    max_model_len and pool_bytes are the user's, or None.
    """

    context: int
    page_size: int
    page_bytes: int
    fixed_bytes: int
    max_num_seqs: int
    max_model_len: int | None = None
    pool_bytes: int | None = None
    windows: tuple[int, ...] = (0,)
    chunk: int = 1

    @property
    def groups(self) -> KvGroups:
        return KvGroups(self.page_size, self.windows, self.chunk)

    def longest(self, pages: int) -> int:
        """Tokens of the longest sequence that so many pages hold."""
        return self.groups.longest(pages, self.context)


@dataclass(frozen=True, slots=True)
class Sizes:
    """num_pages hold at least one sequence of max_model_len tokens; `reason` is the log line."""

    num_pages: int
    max_model_len: int
    reason: str


def choose_sizes(demand: Demand, room: Room) -> Sizes:
    """Pages and context that fit into `room`. Raises SizingError for explicit values that don't."""
    page_bytes = demand.page_bytes
    left = room.bytes - demand.fixed_bytes
    wanted_len = _explicit_len(demand)
    pages = _pool_pages(demand, left, page_bytes, room, wanted_len)
    capacity = demand.longest(pages)
    if demand.max_model_len is not None and demand.max_model_len > capacity:
        raise SizingError(
            f"max_model_len is {demand.max_model_len} tokens; the pool of {_mib(pages * page_bytes)} holds a sequence "
            f"of at most {capacity}. Lower --max-model-len, or raise --kv-cache-memory-bytes to "
            f"{demand.groups.pages_for(demand.max_model_len) * page_bytes}"
        )
    max_model_len = min(wanted_len, capacity)
    return Sizes(pages, max_model_len, _reason(demand, room, pages, page_bytes, max_model_len))


def _explicit_len(demand: Demand) -> int:
    if demand.max_model_len is None:
        return demand.context
    if not 1 <= demand.max_model_len <= demand.context:
        raise SizingError(
            f"max_model_len is {demand.max_model_len} tokens; this model's context is {demand.context}, "
            f"so it must be from 1 to {demand.context}"
        )
    return demand.max_model_len


def _pool_pages(demand: Demand, left: int, page_bytes: int, room: Room, wanted_len: int) -> int:
    """The pool, in pages: as told, or a share of what is left but no more than is of use."""
    fitting = max(0, left) // page_bytes
    if demand.pool_bytes is not None:
        pages = demand.pool_bytes // page_bytes
        if pages > fitting:
            raise SizingError(
                f"kv_cache_memory_bytes is {demand.pool_bytes}; the largest that fits is {fitting * page_bytes} "
                f"({room.source}: {_mib(room.bytes)}, of which weights and workspace take {_mib(demand.fixed_bytes)})"
            )
        if pages < 1:
            raise SizingError(f"kv_cache_memory_bytes is {demand.pool_bytes}; one page takes {page_bytes} bytes")
        return pages
    pages_per_seq = demand.groups.pages_for(wanted_len)
    pages = min(int(max(0, left) * POOL_SHARE) // page_bytes, _useful_pages(demand, wanted_len))
    if demand.max_model_len is not None and pages < pages_per_seq <= fitting:
        return pages_per_seq  # the user's context comes before our reserve
    if demand.max_model_len is not None and pages_per_seq > fitting:
        raise SizingError(
            f"max_model_len is {demand.max_model_len} tokens, whose KV takes {_mib(pages_per_seq * page_bytes)}; the "
            f"largest that fits is {demand.longest(fitting)} ({room.source}: {_mib(room.bytes)}, of which weights "
            f"and workspace take {_mib(demand.fixed_bytes)})"
        )
    if pages < 1:
        raise SizingError(
            f"there is no memory for KV pages: {room.source} leaves {_mib(room.bytes)}, weights and workspace take "
            f"{_mib(demand.fixed_bytes)}"
        )
    return pages


def _useful_pages(demand: Demand, wanted_len: int) -> int:
    """What `max_num_seqs` sequences of usual length need, or a few of the longest; never more than all can fill."""
    groups = demand.groups
    usual = demand.max_num_seqs * groups.pages_for(min(USUAL_TOKENS, wanted_len))
    longest = min(LONGEST_SEQUENCES, demand.max_num_seqs) * groups.pages_for(wanted_len)
    return max(usual, longest)


def _reason(demand: Demand, room: Room, pages: int, page_bytes: int, max_model_len: int) -> str:
    """One line: model maximum, chosen value, why, and the flag that changes it."""
    groups = demand.groups.count
    pool = f"{pages} pages of {demand.page_size} tokens"
    pool += f" in one of {groups} groups of layers" if groups > 1 else ""
    pool += f" ({_mib(pages * page_bytes)})"
    if demand.pool_bytes is not None:
        pool += " as kv_cache_memory_bytes asks"
    elif pages == _useful_pages(demand, max_model_len):
        tokens = pages * demand.page_size // (groups * demand.max_num_seqs)
        pool += f", enough for {demand.max_num_seqs} sequences of {tokens} tokens"
        pool += f" (of {_mib(room.bytes)}, {room.source}; change with --kv-cache-memory-bytes)"
    else:
        pool += f" from {_mib(room.bytes)}, {room.source} (change with --kv-cache-memory-bytes)"
    if demand.max_model_len is not None:
        length = f"max_model_len {max_model_len} as asked for"
    elif max_model_len < demand.context:
        length = f"max_model_len {max_model_len}, what the pool holds (change with --max-model-len)"
    else:
        length = f"max_model_len {max_model_len}, all of it (change with --max-model-len)"
    return f"model context {demand.context}; {length}; KV pool {pool}"


def _mib(count: int) -> str:
    return f"{count / _MIB:,.1f} MiB"
