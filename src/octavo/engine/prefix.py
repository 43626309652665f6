"""The prefix index: which pages already hold the K and V of a prompt's next block.

A block is `page_size` tokens. Its key is a 128-bit keyed hash of (key of the block before it, its tokens), and the
chain begins with a hash of the salt, so a key stands for everything up to the block's end. Keys only find candidates:
a hit also compares the block's tokens and its parent entry, so a collision is a miss, never somebody else's text.

The entries form a tree: an entry is only known while its parent is, so evicting one forgets all that continue it.

A block has a page in every KV group. Those of groups that see all stand and fall together with the entry. In groups
with a window an entry can lose its page and still be a link of longer prefixes: what continues a prefix sees only
the last pages of it. So a match is the longest prefix whose pages are there as far as the windows reach back from its
end, and an entry goes when it has neither pages nor children.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from octavo.engine.groups import NO_PAGE, first_seen
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
    """One known block, or the root of a salt's tree (no pages, the encoded salt as tokens). Dead once evicted.

    pages: one for each KV group, NO_PAGE where a group with a window has lost it.
    """

    __slots__ = ("alive", "children", "depth", "key", "pages", "parent", "tokens")

    def __init__(self, key: bytes, pages: list[int], tokens: bytes, parent: Entry | None) -> None:
        self.key = key
        self.pages = pages
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
        self._windows, self._sliding = pool.groups.windows, pool.groups.sliding
        self.depth: Ints = np.full(pool.num_pages, -1, np.int32)
        pool.on_evict = self._evicted

    def __len__(self) -> int:
        return len(self._entries)

    def extend_keys(self, keys: list[bytes], salt: bytes, tokens: Ints, blocks: int) -> None:
        """Append the missing ones of the first `blocks` keys of these tokens to `keys`."""
        if len(keys) >= blocks:
            return
        size = self._pool.page_size
        content = tokens[len(keys) * size : blocks * size].tobytes()
        for at in range(0, len(content), size * 4):
            keys.append(self.next_key(keys, salt, content[at : at + size * 4]))

    def next_key(self, keys: list[bytes], salt: bytes, tokens: bytes) -> bytes:
        """The key of the block behind those of `keys`."""
        return self._hash(keys[-1] if keys else self._hash(b"", salt), tokens)

    def probe(self, keys: list[bytes]) -> int:
        """How many leading blocks are probably known; `match` may find fewer. O(log n), as children imply parents, and
        of a window's blocks where there is one."""
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            if keys[middle] in self._entries:
                low = middle + 1
            else:
                high = middle
        return self._usable(low, lambda block: self._entries.get(keys[block])) if self._sliding else low

    def match(self, keys: list[bytes], salt: bytes, tokens: Ints, blocks: int) -> list[Entry]:
        """The known entries of the first blocks of these tokens, at most `blocks`; tokens and parents are compared.

        All pages are there that somebody who continues them can see (BlockTable.share leaves the others out).
        """
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
        return found[: self._usable(len(found), found.__getitem__)] if self._sliding else found

    def insert(self, parent: Entry | None, salt: bytes, key: bytes, tokens: bytes, pages: list[int]) -> Entry | None:
        """Make a block's held, full pages, one for each group, known as the block after `parent` (None: the first one).

        Returns the entry that now stands for the block: an equal one that was there before keeps the pages it has, and
        gets those that it has lost. None when that can't be: another block has the key (a collision), or the parent has
        been evicted.
        """
        if parent is None:
            parent = self._roots.get(salt)
            if parent is None:
                parent = self._roots[salt] = Entry(b"", [], salt, None)
        elif not parent.alive:
            return None
        known = self._entries.get(key)
        if known is not None:
            if known.parent is not parent or known.tokens != tokens:
                return None
            for group, page in enumerate(pages):
                if known.pages[group] == NO_PAGE:
                    known.pages[group] = page
                    self._keep(page, known)
            return known
        entry = Entry(key, pages, tokens, parent)
        parent.children[key] = entry
        self._entries[key] = entry
        for page in pages:
            self._keep(page, entry)
        return entry

    def _keep(self, page: int, entry: Entry) -> None:
        self._by_page[page] = entry
        self.depth[page] = entry.depth
        self._pool.keep(page)

    def _usable(self, blocks: int, entry_at: Callable[[int], Entry | None]) -> int:
        """The longest of the prefixes of at most `blocks` blocks that has all that its windows reach back to.

        A block that lacks a page is needed by every longer prefix whose window reaches it, by none that ends before it.
        """
        size, end, at = self._pool.page_size, blocks, blocks
        reach = self._sliding[-1][0]  # the longest window
        while at > first_seen(reach, end * size, size):
            at -= 1
            entry = entry_at(at)
            if entry is None or any(
                at >= first_seen(window, end * size, size) and any(entry.pages[group] == NO_PAGE for group in groups)
                for window, groups in self._sliding
            ):
                end = at
        return end

    def _evicted(self, page: int) -> None:
        entry = self._by_page[page]
        if self._windows[entry.pages.index(page)]:
            self._lose(page, entry)
            return
        assert entry.parent is not None
        del entry.parent.children[entry.key]
        self._drop_unused(entry.parent)
        stack = [entry]
        while stack:
            entry = stack.pop()
            stack += entry.children.values()
            entry.alive = False
            del self._entries[entry.key]
            for own in entry.pages:
                if own != NO_PAGE:
                    self._disown(own)
                    self._pool.forget(own)

    def _lose(self, page: int, entry: Entry) -> None:
        """A page of a group with a window."""
        entry.pages[entry.pages.index(page)] = NO_PAGE
        self._disown(page)
        self._drop_unused(entry)

    def _disown(self, page: int) -> None:
        del self._by_page[page]
        self.depth[page] = -1

    def _drop_unused(self, entry: Entry) -> None:
        """Entries without pages go as far up as nobody continues them."""
        while entry.parent is not None and not entry.children and all(page == NO_PAGE for page in entry.pages):
            entry.alive = False
            del self._entries[entry.key]
            del entry.parent.children[entry.key]
            entry = entry.parent
        self._drop_empty_root(entry)

    def _drop_empty_root(self, root: Entry) -> None:
        if root.parent is None and not root.children:
            root.alive = False
            del self._roots[root.tokens]

    def check(self) -> None:
        """Prove the invariants. Raises AssertionError. O(entries)."""
        pages = [page for entry in self._entries.values() for page in entry.pages if page != NO_PAGE]
        assert len(set(pages)) == len(pages) == len(self._by_page), "two entries share a page"
        for key, entry in self._entries.items():
            assert entry.key == key
            assert entry.alive, "a dead entry is known"
            assert entry.parent is not None
            assert entry.parent.alive, "an entry outlived its parent"
            assert entry.parent.children[key] is entry
            assert entry.children or any(page != NO_PAGE for page in entry.pages), "an entry is of no use"
            for page, window in zip(entry.pages, self._windows, strict=True):
                assert page != NO_PAGE or window, "an entry outlived a page that all that continue it see"
                assert page == NO_PAGE or self._by_page[page] is entry
                assert page == NO_PAGE or self._pool.kept[page], "the pool does not know that the index knows a page"
        assert int(self._pool.kept.sum()) == len(pages), "the pool keeps a page that the index does not know"
