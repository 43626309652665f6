"""The prefix index alone: keys, collisions, salts, eviction. CASES PC-01, PC-02, PC-06."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.engine.pages import PagePool
from octavo.engine.prefix import Entry, HashBlock, PrefixIndex, encode_salt, keyed_hash

SIZE = 4
HASH = keyed_hash(b"k" * 16)


def keys_of(tokens: list[int], salt: tuple[tuple[str, str], ...] = (), hash_block: HashBlock = HASH) -> list[bytes]:
    keys: list[bytes] = []
    index = PrefixIndex(PagePool(1, SIZE), hash_block)
    index.extend_keys(keys, encode_salt(salt), np.array(tokens, np.int32), len(tokens) // SIZE)
    return keys


class Store:
    """A pool whose index is filled with whole prompts, each page held until `release`."""

    def __init__(self, num_pages: int = 16, hash_block: HashBlock = HASH) -> None:
        self.pool = PagePool(num_pages, SIZE)
        self.index = PrefixIndex(self.pool, hash_block)
        self.hash_block = hash_block

    def insert(self, tokens: list[int], salt: tuple[tuple[str, str], ...] = ()) -> list[int]:
        """Take pages for all full blocks and register them. Returns the pages."""
        blocks = len(tokens) // SIZE
        pages = self.pool.take(blocks)
        assert pages is not None
        parent: Entry | None = None
        for block, key in enumerate(keys_of(tokens, salt, self.hash_block)):
            self.pool.fill(pages[block], SIZE)
            content = np.array(tokens[block * SIZE : (block + 1) * SIZE], np.int32).tobytes()
            parent = self.index.insert(parent, encode_salt(salt), key, content, [pages[block]])
            if parent is None:
                break
        self.index.check()
        return pages

    def match(self, tokens: list[int], salt: tuple[tuple[str, str], ...] = ()) -> list[int]:
        keys = keys_of(tokens, salt, self.hash_block)
        found = self.index.match(keys, encode_salt(salt), np.array(tokens, np.int32), len(keys))
        return [entry.pages[0] for entry in found]


def test_a_chain_is_found_as_far_as_it_is_equal() -> None:
    store = Store()
    pages = store.insert([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
    assert store.match([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]) == pages
    assert store.match([1, 2, 3, 4, 5, 6, 7, 9]) == pages[:1]
    assert store.match([0, 2, 3, 4, 5, 6, 7, 8]) == []
    assert store.match([5, 6, 7, 8]) == [], "a block is only found behind the blocks that it was computed behind"


def test_only_full_blocks_have_keys() -> None:
    assert len(keys_of([1, 2, 3])) == 0
    assert len(keys_of([1, 2, 3, 4, 5, 6, 7])) == 1


@pytest.mark.parametrize("key", [b"", b"\0" * 16])
def test_a_constant_hash_gives_misses_but_never_other_text(key: bytes) -> None:
    store = Store(hash_block=lambda parent, content: key)
    pages = store.insert([1, 2, 3, 4, 5, 6, 7, 8])
    assert store.match([1, 2, 3, 4, 5, 6, 7, 8]) == pages[:1], "the second block's key was taken"
    assert store.match([9, 2, 3, 4, 5, 6, 7, 8]) == []
    assert store.match([1, 2, 3, 4, 1, 2, 3, 4]) == pages[:1], "the first block is not its own continuation"
    assert store.match([1, 2, 3, 4], salt=(("tenant", "x"),)) == []


def test_a_colliding_head_does_not_lead_to_another_heads_continuation() -> None:
    """The key is the parity of a block's first token. Comparing the parent's key would not be enough here."""
    store = Store(num_pages=4, hash_block=lambda parent, content: bytes([content[0] % 2]))
    head, _ = store.insert([2, 2, 2, 2, 1, 1, 1, 1])
    store.pool.release([head])
    taken = store.pool.take(3)  # two free pages and the head; its continuation is still held
    assert taken is not None
    store.pool.release(taken)
    other = store.insert([4, 4, 4, 4])
    assert store.match([4, 4, 4, 4, 1, 1, 1, 1]) == other
    assert store.match([2, 2, 2, 2, 1, 1, 1, 1]) == []


def test_keys_differ_between_servers_and_are_equal_for_an_equal_secret() -> None:
    tokens = [1, 2, 3, 4]
    assert keys_of(tokens) == keys_of(tokens, hash_block=keyed_hash(b"k" * 16))
    assert keys_of(tokens) != keys_of(tokens, hash_block=keyed_hash(b"l" * 16))
    assert len(keys_of(tokens)[0]) == 16
    with pytest.raises(ValueError, match="it must have 16 to 64"):
        keyed_hash(b"short")


def test_salts_are_tagged_by_kind() -> None:
    salts = [
        (),
        (("adapter", "x"),),
        (("salt", "x"),),
        (("adapter", "x"), ("salt", "")),
        (("adapter", ""), ("salt", "x")),
        (("adapterx", ""),),
        (("", "adapterx"),),
    ]
    assert len({encode_salt(salt) for salt in salts}) == len(salts)
    assert len({keys_of([1, 2, 3, 4], salt)[0] for salt in salts}) == len(salts)
    store = Store()
    pages = [store.insert([1, 2, 3, 4], salt) for salt in salts]
    assert [store.match([1, 2, 3, 4], salt) for salt in salts] == pages


def test_a_tail_is_evicted_before_its_head() -> None:
    store = Store(num_pages=4)
    old = store.insert([1, 2, 3, 4, 5, 6, 7, 8])
    new = store.insert([9, 9, 9, 9, 8, 8, 8, 8])
    store.pool.release(old)
    store.pool.release(new)
    store.pool.share(old)  # used again: now the other one is the older
    store.pool.release(old)
    assert store.pool.take(1) is not None
    assert store.match([9, 9, 9, 9, 8, 8, 8, 8]) == new[:1]
    assert store.pool.take(2) is not None
    assert store.match([9, 9, 9, 9, 8, 8, 8, 8]) == []
    assert store.match([1, 2, 3, 4, 5, 6, 7, 8]) == old[:1]


def test_what_continues_an_evicted_block_is_forgotten_with_it() -> None:
    store = Store(num_pages=4)
    head, tail = store.insert([1, 2, 3, 4, 5, 6, 7, 8])
    store.pool.release([head])
    assert store.pool.take(3) is not None  # two free pages, then the head, although its continuation is still held
    store.index.check()
    assert len(store.index) == 0
    store.pool.release([tail])
    store.pool.check([[p for p in range(4) if p != tail]])


def test_an_empty_tree_leaves_no_root_behind() -> None:
    store = Store(num_pages=2)
    for tenant in range(50):
        pages = store.insert([1, 2, 3, 4], salt=(("tenant", str(tenant)),))
        store.pool.release(pages)
    assert len(store.index._roots) <= 2
