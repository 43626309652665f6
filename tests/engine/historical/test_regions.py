"""The allocators against a map of who has which page."""

from __future__ import annotations

import random

import pytest

from octavo.engine.historical.regions import Allocator, Buddy, FirstFit, Region


@pytest.mark.parametrize("kind", [FirstFit, Buddy])
@pytest.mark.parametrize("num_pages", [1, 7, 64, 100])
@pytest.mark.parametrize("seed", range(5))
def test_regions_never_overlap_and_all_comes_back(
    kind: type[FirstFit] | type[Buddy], num_pages: int, seed: int
) -> None:
    rng = random.Random(seed)
    allocator: Allocator = kind(num_pages)
    owned: list[Region] = []
    owner = [False] * num_pages
    for _ in range(500):
        if owned and rng.random() < 0.5:
            region = owned.pop(rng.randrange(len(owned)))
            allocator.give_back(region)
            owner[region.start : region.start + region.pages] = [False] * region.pages
            continue
        wanted = rng.randint(1, 12)
        fits = allocator.fits(wanted)
        region = allocator.reserve(wanted)
        assert fits == (region is not None)
        if region is None:
            if kind is FirstFit:
                assert wanted * "." not in "".join(".#"[taken] for taken in owner), "a hole was long enough"
            continue
        assert region.pages >= wanted
        assert not any(owner[region.start : region.start + region.pages])
        owner[region.start : region.start + region.pages] = [True] * region.pages
        owned.append(region)
        if kind is Buddy:
            assert region.pages.bit_count() == 1
            assert region.pages < 2 * wanted
            assert region.start % region.pages == 0
    for region in owned:
        allocator.give_back(region)
    largest = num_pages if kind is FirstFit else 1 << (num_pages.bit_length() - 1)
    whole = allocator.reserve(largest)
    assert whole == Region(0, largest)
