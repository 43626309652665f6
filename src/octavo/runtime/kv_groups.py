"""Which layers of a model keep their K and V together: layers that store alike and see equally far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.backends.kv_types import KvDtype
from octavo.backends.ops import KvSpec
from octavo.models.spec import Attention, DecoderSpec, LayerSpec

#: Groups whose pages hold at most so many times the bytes of their layers are good enough; of such ways to group the
#: layers the one with the fewest groups is taken, since a block takes a page in each.
_MOST_PADDING = 1.1


@dataclass(frozen=True, slots=True)
class KvGrouping:
    """The KV groups of a model. places: the group of each layer, and which of the group's layers it is."""

    groups: tuple[KvSpec, ...]
    places: tuple[tuple[int, int], ...]

    @property
    def windows(self) -> tuple[int, ...]:
        return tuple(group.window for group in self.groups)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, in whatever group it is."""
        return max(group.page_bytes for group in self.groups)

    @property
    def bytes_per_token(self) -> int:
        """K and V of one token in all layers."""
        return sum(group.bytes_per_token for group in self.groups)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Layers that store alike, by number."""

    kv_heads: int
    head_dim: int
    window: int
    layers: tuple[int, ...]

    def group(self, layers: int, page_size: int, dtype: KvDtype) -> KvSpec:
        return KvSpec(layers, self.kv_heads, self.head_dim, page_size, dtype, self.window)


def kv_grouping(spec: DecoderSpec, page_size: int, dtype: KvDtype, max_len: int, windows: bool = True) -> KvGrouping:
    """The groups for sequences of up to `max_len` tokens; without `windows` every layer keeps everything.

    A kind of layers may be split into several groups: pages have the same bytes and the same number of token slots in
    all groups, so 15 layers of one kind and 3 of another go into 5 groups and 1, and no page has room to spare.
    """
    kinds = _kinds(spec, max_len, windows)
    groups: list[KvSpec] = []
    places = [(0, 0)] * len(spec.layers)
    for kind, count in zip(kinds, _group_counts(kinds, page_size, dtype), strict=True):
        for layers in np.array_split(kind.layers, count):
            for place, layer in enumerate(layers.tolist()):
                places[layer] = (len(groups), place)
            groups.append(kind.group(len(layers), page_size, dtype))
    return KvGrouping(tuple(groups), tuple(places))


def _kinds(spec: DecoderSpec, max_len: int, windows: bool) -> list[_Kind]:
    found: dict[tuple[int, int, int], list[int]] = {}
    for index, layer in enumerate(spec.layers):
        window = _window(layer, max_len) if windows else 0
        found.setdefault((layer.mixer.kv_heads, layer.mixer.head_dim, window), []).append(index)
    return [_Kind(*kind, tuple(layers)) for kind, layers in found.items()]


def _window(layer: LayerSpec, max_len: int) -> int:
    """0 where no sequence outgrows it."""
    window = layer.mixer.window if isinstance(layer.mixer, Attention) else 0
    return window if window < max_len else 0


def _group_counts(kinds: list[_Kind], page_size: int, dtype: KvDtype) -> list[int]:
    """How many groups the layers of each kind make."""

    def counts(page_bytes: int) -> list[int] | None:
        found = []
        for kind in kinds:
            fitting = [
                n for n in range(1, len(kind.layers) + 1) if kind.group(n, page_size, dtype).page_bytes <= page_bytes
            ]
            if not fitting:
                return None
            found.append(-(-len(kind.layers) // fitting[-1]))
        return found

    def padding(page_bytes: int, found: list[int]) -> float:
        """Of the kind that is worst off."""
        return max(
            page_bytes * count / kind.group(len(kind.layers), page_size, dtype).page_bytes
            for kind, count in zip(kinds, found, strict=True)
        )

    sizes = {kind.group(n, page_size, dtype).page_bytes for kind in kinds for n in range(1, len(kind.layers) + 1)}
    ways = [(padding(size, found), found) for size in sorted(sizes) if (found := counts(size)) is not None]
    least = max(_MOST_PADDING, min(share for share, _ in ways))
    return min((found for share, found in ways if share <= least), key=sum)
