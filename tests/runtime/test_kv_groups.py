"""Which layers share a KV group, and what an engine makes of that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.oracle.families import FAMILIES, write_family

from octavo.config import EngineConfig
from octavo.formats.resolve import resolve
from octavo.models.load import load_model
from octavo.models.spec import Attention, DecoderSpec
from octavo.runtime.build import build_engine, kv_groups_for, kv_spec
from octavo.runtime.kv_groups import kv_grouping


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> DecoderSpec:
    return load_model(resolve(str(write_family(FAMILIES["mistral"], tmp_path_factory.mktemp("m") / "m")))).spec


def layered(spec: DecoderSpec, *windows: int, kv_heads: dict[int, int] | None = None) -> DecoderSpec:
    """A model whose layers have these windows; kv_heads: of layers with such a window."""
    layers = []
    for window in windows:
        layer = spec.layers[0].with_window(window)
        assert isinstance(layer.mixer, Attention)
        heads = (kv_heads or {}).get(window, layer.mixer.kv_heads)
        layers.append(replace(layer, mixer=replace(layer.mixer, kv_heads=heads)))
    return replace(spec, layers=tuple(layers))


def shape(spec: DecoderSpec, max_len: int = 4096) -> list[tuple[int, int]]:
    """(window, layers) of each group."""
    found = kv_grouping(spec, 4, "bf16", max_len)
    members: list[list[int]] = [[] for _ in found.groups]
    for group, place in found.places:
        members[group].append(place)
    assert [sorted(places) for places in members] == [list(range(group.layers)) for group in found.groups]
    for (group, _), layer in zip(found.places, spec.layers, strict=True):
        assert isinstance(layer.mixer, Attention)
        kept = found.groups[group].window
        assert kept == (layer.mixer.window if layer.mixer.window < max_len else 0)
        assert found.groups[group].kv_heads == layer.mixer.kv_heads
    assert found.bytes_per_token == sum(2 * 2 * layer.mixer.kv_heads * layer.mixer.head_dim for layer in spec.layers)
    return [(group.window, group.layers) for group in found.groups]


def test_layers_alike_are_one_group(spec: DecoderSpec) -> None:
    assert shape(layered(spec, *[0] * 6)) == [(0, 6)]
    assert shape(layered(spec, *[512] * 6)) == [(512, 6)]


def test_as_many_of_both_kinds_are_two_groups(spec: DecoderSpec) -> None:
    assert shape(layered(spec, *[512, 0] * 3)) == [(512, 3), (0, 3)]


def test_gemma_3(spec: DecoderSpec) -> None:
    """15 sliding layers and 3 others: no page has room to spare."""
    model = layered(spec, *[512, 512, 512, 512, 512, 0] * 3)
    assert shape(model) == [(512, 3)] * 5 + [(0, 3)]
    found = kv_grouping(model, 4, "bf16", 4096)
    assert len(found.groups) * found.page_bytes == 4 * found.bytes_per_token


def test_numbers_that_do_not_divide_leave_a_little_room(spec: DecoderSpec) -> None:
    model = layered(spec, *[512] * 22, *[0] * 4)
    assert shape(model) == [(512, 4)] * 4 + [(512, 3)] * 2 + [(0, 4)]
    found = kv_grouping(model, 4, "bf16", 4096)
    assert len(found.groups) * found.page_bytes < 1.1 * 4 * found.bytes_per_token


def test_layers_that_store_more_are_fewer_in_a_group(spec: DecoderSpec) -> None:
    assert shape(layered(spec, 512, 512, 512, 512, 0, 0, kv_heads={512: 1, 0: 2})) == [(512, 4), (0, 2)]


def test_a_window_that_no_sequence_outgrows_is_none(spec: DecoderSpec) -> None:
    assert shape(layered(spec, 512, 0, 512, 0), max_len=512) == [(0, 4)]
    assert shape(layered(spec, 512, 0, 512, 0), max_len=513) == [(512, 2), (0, 2)]


def test_contiguous_memory_has_one_group_that_keeps_all(spec: DecoderSpec) -> None:
    model = layered(spec, 512, 0, 512, 0)
    config = EngineConfig(model="unused", kv_policy="contiguous", max_model_len=4096)
    (group,) = kv_groups_for(model, config).groups
    assert (group.layers, group.window) == (4, 0)
    assert kv_spec(model, config) == group
    with pytest.raises(ValueError, match="make 2 KV groups; with kv_policy contiguous"):
        kv_groups_for(layered(spec, 512, 0, kv_heads={0: 1}), config)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_an_engine_says_what_it_is_made_of(tmp_path: Path, backend: str) -> None:
    folder = str(write_family(FAMILIES["gemma3-gguf"], tmp_path / "m"))
    engine = build_engine(EngineConfig(model=folder, backend=backend, max_model_len=300, kv_cache_memory_bytes=1 << 20))
    assert engine.scheduler.config.windows == (12,) * 6 + (0,)
    assert engine.facts.kv_groups == engine.ready(0).kv_groups == 7
    assert "in one of 7 groups of layers" in engine.facts.texts["sizes"]
    assert engine.facts.num_pages * engine.facts.page_size // 7 * engine.facts.kv_bytes_per_token <= 1 << 20
