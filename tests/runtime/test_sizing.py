"""Pool and context from the room there is; explicit values either hold or are refused with the largest that would."""

from __future__ import annotations

import pytest

from octavo.runtime.cgroup import Room
from octavo.runtime.sizing import LONGEST_SEQUENCES, POOL_SHARE, USUAL_TOKENS, Demand, SizingError, choose_sizes

MIB = 1 << 20


def demand(**changes: object) -> Demand:
    fields: dict[str, object] = {
        "context": 8192,
        "page_size": 8,
        "page_bytes": 8 * 23_040,
        "fixed_bytes": 200 * MIB,
        "max_num_seqs": 256,
    }
    return Demand(**{**fields, **changes})  # type: ignore[arg-type]


def room(mib: int) -> Room:
    return Room(mib * MIB, "memory.max of the control group")


def test_a_share_of_the_room_and_the_whole_context() -> None:
    sizes = choose_sizes(demand(), room(4096))
    page_bytes = 8 * 23_040
    assert sizes.num_pages == int((4096 - 200) * MIB * POOL_SHARE) // page_bytes
    assert sizes.max_model_len == 8192
    for part in ("model context 8192", "max_model_len 8192", "memory.max", "--kv-cache-memory-bytes", "4,096.0 MiB"):
        assert part in sizes.reason


def test_a_million_tokens_of_context_are_clipped_and_explained() -> None:
    sizes = choose_sizes(demand(context=1_000_000), room(1024))
    assert sizes.max_model_len == sizes.num_pages * 8 < 1_000_000
    assert "model context 1000000" in sizes.reason
    assert "--max-model-len" in sizes.reason


def test_an_explicit_context_that_does_not_fit_names_the_largest() -> None:
    with pytest.raises(SizingError, match=r"max_model_len is 900000.*largest that fits is (\d+)") as caught:
        choose_sizes(demand(context=1_000_000, max_model_len=900_000), room(1024))
    largest = int(str(caught.value).split("largest that fits is ")[1].split()[0])
    assert choose_sizes(demand(context=1_000_000, max_model_len=largest), room(1024)).max_model_len == largest
    with pytest.raises(SizingError):
        choose_sizes(demand(context=1_000_000, max_model_len=largest + 1), room(1024))


def test_an_explicit_context_above_the_models_is_refused() -> None:
    with pytest.raises(SizingError, match=r"max_model_len is 8193.*context is 8192"):
        choose_sizes(demand(max_model_len=8193), room(4096))


def test_an_explicit_context_may_take_the_reserve() -> None:
    sizes = choose_sizes(demand(max_model_len=8192), room(200 + 200))
    assert sizes.num_pages == 1024
    assert sizes.max_model_len == 8192


def test_an_explicit_pool_holds_or_names_the_largest() -> None:
    assert choose_sizes(demand(pool_bytes=64 * MIB), room(1024)).num_pages == 64 * MIB // (8 * 23_040)
    with pytest.raises(SizingError, match=r"kv_cache_memory_bytes is 2147483648; the largest that fits is (\d+)") as e:
        choose_sizes(demand(pool_bytes=2048 * MIB), room(1024))
    largest = int(str(e.value).split("largest that fits is ")[1].split()[0])
    assert choose_sizes(demand(pool_bytes=largest), room(1024)).num_pages * 8 * 23_040 == largest


def test_an_explicit_pool_too_small_for_the_explicit_context_says_what_is_needed() -> None:
    with pytest.raises(
        SizingError, match=r"holds a sequence of at most 2912.*raise --kv-cache-memory-bytes to (\d+)"
    ) as e:
        choose_sizes(demand(pool_bytes=64 * MIB, max_model_len=4096), room(1024))
    needed = int(str(e.value).rsplit(" ", 1)[1])
    assert choose_sizes(demand(pool_bytes=needed, max_model_len=4096), room(1024)).max_model_len == 4096


def test_no_room_at_all() -> None:
    with pytest.raises(SizingError, match="no memory for KV pages"):
        choose_sizes(demand(), room(100))
    with pytest.raises(SizingError, match="one page takes"):
        choose_sizes(demand(pool_bytes=10), room(1024))


def test_no_more_than_all_sequences_can_fill() -> None:
    assert choose_sizes(demand(max_num_seqs=2), room(1 << 20)).num_pages == 2 * 1024


def test_no_more_than_is_of_use_and_the_line_says_so() -> None:
    sizes = choose_sizes(demand(), room(24 << 10))
    assert sizes.num_pages == 256 * USUAL_TOKENS // 8
    assert sizes.max_model_len == 8192
    assert "enough for 256 sequences of 512 tokens" in sizes.reason
    assert "change with --kv-cache-memory-bytes" in sizes.reason
    assert choose_sizes(demand(max_num_seqs=8), room(24 << 10)).num_pages == LONGEST_SEQUENCES * 1024
    assert choose_sizes(demand(context=300), room(24 << 10)).num_pages == 256 * 38
    assert choose_sizes(demand(max_model_len=4096), room(24 << 10)).num_pages == 256 * USUAL_TOKENS // 8


def test_windows_let_a_pool_hold_longer_sequences() -> None:
    """A group that sees 512 tokens needs pages for these and a chunk, however long a sequence is."""
    windowed = demand(context=100_000, windows=(0, 512, 512, 512), chunk=256)
    sizes, plain = (
        choose_sizes(windowed, room(1024)),
        choose_sizes(demand(context=100_000, windows=(0,) * 4), room(1024)),
    )
    pages_left = sizes.num_pages - 3 * ((511 + 256 + 6) // 8 + 1)
    assert sizes.num_pages == plain.num_pages
    assert sizes.max_model_len == pages_left * 8
    assert plain.max_model_len == plain.num_pages // 4 * 8
    assert "in one of 4 groups of layers" in sizes.reason


def test_an_explicit_context_with_windows_names_the_largest_that_fits() -> None:
    fields: dict[str, object] = {"context": 1_000_000, "windows": (0, 512), "chunk": 256}
    with pytest.raises(SizingError, match=r"max_model_len is 900000.*largest that fits is (\d+)") as caught:
        choose_sizes(demand(max_model_len=900_000, **fields), room(1024))
    largest = int(str(caught.value).split("largest that fits is ")[1].split()[0])
    assert choose_sizes(demand(max_model_len=largest, **fields), room(1024)).max_model_len == largest
    with pytest.raises(SizingError):
        choose_sizes(demand(max_model_len=largest + 1, **fields), room(1024))


def test_a_model_of_windows_only_needs_little_for_any_context() -> None:
    sizes = choose_sizes(demand(context=1_000_000, windows=(512,), chunk=256, max_num_seqs=1), room(1024))
    assert sizes.max_model_len == 1_000_000
    assert sizes.num_pages == (511 + 256 + 6) // 8 + 1
