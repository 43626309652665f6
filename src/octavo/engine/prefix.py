"""The prefix index: which page already holds the K and V of a prompt's next block.

A block is `page_size` tokens. Its key is a 128-bit keyed hash of (key of the block before it, its tokens), and the
chain begins with a hash of the salt, so a key stands for everything up to the block's end. Keys only find candidates:
a hit also compares the block's tokens and its parent entry, so a collision is a miss, never somebody else's text.

The entries form a tree: an entry is only known while its parent is, so evicting one forgets all that continue it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from octavo.engine.pages import PagePool

Ints = npt.NDArray[np.int32]
#: (key of the parent, tokens or encoded salt) -> key
HashBlock = Callable[[bytes, bytes], bytes]

KEY_BYTES = 16


def keyed_hash(secret: bytes) -> HashBlock:
    """blake2b with 16 to 64 bytes of secret: who doesn't know them can't construct a collision or predict a key."""
    if not 16 <= len(secret) <= 64:
        raise ValueError(f"the prefix key has {len(secret)} bytes; it must have 16 to 64")
    base = hashlib.blake2b(key=secret, digest_size=KEY_BYTES)

    def hash_block(parent: bytes, content: bytes) -> bytes:
        state = base.copy()
        state.update(parent)
        state.update(content)
        return state.digest()

    return hash_block


def encode_salt(salt: tuple[tuple[str, str], ...]) -> bytes:
    """Injective: every kind and value carries its length, so ("adapter", "x") never equals ("salt", "x")."""
    parts = [text.encode(errors="surrogatepass") for pair in salt for text in pair]
    return b"salt" + b"".join(len(part).to_bytes(4, "little") + part for part in parts)


class Entry:
    """One known block, or the root of a salt's tree (page -1, the encoded salt as tokens). Dead once evicted."""

    __slots__ = ("alive", "children", "depth", "key", "page", "parent", "tokens")

    def __init__(self, key: bytes, page: int, tokens: bytes, parent: Entry | None) -> None:
        self.key = key
        self.page = page
        self.tokens = tokens
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent else -1
        self.children: dict[bytes, Entry] = {}  # by key; ordered, so that eviction is deterministic
        self.alive = True


class PrefixIndex:
    """Known blocks of one pool. It holds no pages; the pool asks it to forget those that it gives away.

    A `salt` below is encoded (`encode_salt`); requests find each other's blocks only under equal salts.
    """

    def __init__(self, pool: PagePool, hash_block: HashBlock) -> None:
        self._pool = pool
        self._hash = hash_block
        self._entries: dict[bytes, Entry] = {}
        self._roots: dict[bytes, Entry] = {}
        self._by_page: dict[int, Entry] = {}
        self.depth: Ints = np.full(pool.num_pages, -1, np.int32)
        pool.on_evict = self._evicted

    def __len__(self) -> int:
        return len(self._entries)

    def extend_keys(self, keys: list[bytes], salt: bytes, tokens: Ints, blocks: int) -> None:
        """Append the missing ones of the first `blocks` keys of these tokens to `keys`."""
        if len(keys) >= blocks:
            return
        size = self._pool.page_size
        key = keys[-1] if keys else self._hash(b"", salt)
        content = tokens[len(keys) * size : blocks * size].tobytes()
        for at in range(0, len(content), size * 4):
            key = self._hash(key, content[at : at + size * 4])
            keys.append(key)

    def probe(self, keys: list[bytes]) -> int:
        """How many leading blocks are probably known; `match` may find fewer. O(log n), as children imply parents."""
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            if keys[middle] in self._entries:
                low = middle + 1
            else:
                high = middle
        return low

    def match(self, keys: list[bytes], salt: bytes, tokens: Ints, blocks: int) -> list[Entry]:
        """The known entries of the first blocks of these tokens, at most `blocks`; tokens and parents are compared."""
        found: list[Entry] = []
        parent = self._roots.get(salt)
        if parent is None:
            return found
        size = self._pool.page_size
        for block in range(blocks):
            entry = self._entries.get(keys[block])
            content = tokens[block * size : (block + 1) * size].tobytes()
            if entry is None or entry.parent is not parent or entry.tokens != content:
                break
            found.append(entry)
            parent = entry
        return found

    def insert(self, parent: Entry | None, salt: bytes, key: bytes, tokens: bytes, page: int) -> Entry | None:
        """Make a held, full page known as the block after `parent` (None: the first block).

        Returns the entry that now stands for the block: an equal one that was there before keeps its own page. None
        when that can't be: another block has the key (a collision), or the parent has been evicted.
        """
        if parent is None:
            parent = self._roots.get(salt)
            if parent is None:
                parent = self._roots[salt] = Entry(b"", -1, salt, None)
        elif not parent.alive:
            return None
        known = self._entries.get(key)
        if known is not None:
            return known if known.parent is parent and known.tokens == tokens else None
        entry = Entry(key, page, tokens, parent)
        parent.children[key] = entry
        self._entries[key] = entry
        self._by_page[page] = entry
        self.depth[page] = entry.depth
        self._pool.keep(page)
        return entry

    def _evicted(self, page: int) -> None:
        top = self._by_page[page]
        if top.parent is not None:
            del top.parent.children[top.key]
            self._drop_empty_root(top.parent)
        stack = [top]
        while stack:
            entry = stack.pop()
            stack += entry.children.values()
            entry.alive = False
            del self._entries[entry.key]
            del self._by_page[entry.page]
            self.depth[entry.page] = -1
            self._pool.forget(entry.page)

    def _drop_empty_root(self, root: Entry) -> None:
        if root.parent is None and not root.children:
            root.alive = False
            del self._roots[root.tokens]

    def check(self) -> None:
        """Prove the invariants. Raises AssertionError. O(entries)."""
        assert len(self._by_page) == len(self._entries), "two entries share a page"
        for key, entry in self._entries.items():
            assert entry.key == key
            assert entry.alive, "a dead entry is known"
            assert self._by_page[entry.page] is entry
            assert self._pool.kept[entry.page], "the pool does not know that the index knows a page"
            assert entry.parent is not None
            assert entry.parent.alive, "an entry outlived its parent"
            assert entry.parent.children[key] is entry
        assert int(self._pool.kept.sum()) == len(self._entries), "the pool keeps a page that the index does not know"
