"""Every family gives transformers' logits in exact mode: batched, chunked, cached, over windows and rotary limits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.oracle.families import FAMILIES, GOLDEN, Family, write_family
from tests.oracle.families_gguf import write_family_gguf
from tests.oracle.harness import assert_golden, generate, greedy

from octavo import _native
from octavo.config import EngineConfig
from octavo.formats.tensor import TensorType
from octavo.runtime.build import build_engine
from octavo.runtime.engine import Engine

EXPECTED = np.load(GOLDEN / "families.npz")
STEPS = 6
BACKENDS = ("reference", "cpu")
FILES = [
    *((name, "folder") for name in FAMILIES),
    *((name, "gguf") for name, family in FAMILIES.items() if family.gguf),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with every family as NAME (folder) and NAME.gguf."""
    directory = tmp_path_factory.mktemp("families")
    for family in FAMILIES.values():
        write_family(family, directory / family.name)
        if family.gguf:
            write_family_gguf(family, directory / f"{family.name}.gguf")
    return directory


def exact_engine(written: Path, family: Family, kind: str, backend: str, **changes: object) -> Engine:
    exact = {"activations": "f32", "kv_cache_dtype": "f32"}
    settings = {"kv_cache_memory_bytes": 16 << 20, "page_size": 4, "max_num_seqs": 8, **exact, **changes}
    path = written / (family.name if kind == "folder" else f"{family.name}.gguf")
    return build_engine(
        EngineConfig(
            model=str(path),
            backend=backend,
            max_model_len=family.max_model_len,
            **settings,
        )
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "kind"), FILES)
def test_logits_batched_chunked_and_cached(written: Path, name: str, kind: str, backend: str) -> None:
    family = FAMILIES[name]
    engine = exact_engine(written, family, kind, backend, max_num_batched_tokens=13)
    assert_golden(EXPECTED, family.name, generate(engine, family.prompts(), greedy(STEPS)))
    again = generate(engine, family.prompts(), greedy(STEPS))
    assert again[-1].cached_tokens > 0
    assert_golden(EXPECTED, family.name, again)


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.gguf])
def test_quantised_files_as_the_reference_reads_them(tmp_path: Path, name: str) -> None:
    """Rows of fused tensors, stacks of experts and transposed heads, taken out of Q8_0 blocks."""
    family = FAMILIES[name]
    write_family_gguf(family, tmp_path / f"{name}.gguf", TensorType.Q8_0)
    expected, actual = (
        generate(exact_engine(tmp_path, family, "gguf", backend), family.prompts(), greedy(STEPS))
        for backend in BACKENDS
    )
    for one, other in zip(expected, actual, strict=True):
        assert one.tokens == other.tokens
        assert np.abs(np.stack(one.logits) - other.logits).max() <= 1e-4 * np.abs(one.logits).max()


@pytest.mark.parametrize("level", _native.supported_levels())
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_at_every_instruction_set_level(written: Path, name: str, level: str) -> None:
    engine = exact_engine(written, FAMILIES[name], "folder", "cpu", isa=level)
    assert_golden(EXPECTED, name, generate(engine, FAMILIES[name].prompts(), greedy(STEPS)))


def assert_same_alone(crowded: Engine, lonely: Engine, family: Family) -> None:
    """Bit for bit: in a crowd, alone, and in chunks of other sizes."""
    crowd = generate(crowded, family.prompts(), greedy(STEPS))
    for index, prompt in enumerate(family.prompts()):
        (alone,) = generate(lonely, [prompt], greedy(STEPS))
        assert np.array_equal(np.stack(alone.logits), np.stack(crowd[index].logits)), f"prompt {index}"


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_do_not_depend_on_the_batch(written: Path, name: str) -> None:
    family = FAMILIES[name]
    engines = (
        exact_engine(written, family, "folder", "cpu", max_num_batched_tokens=tokens, prefix_caching=False)
        for tokens in (64, 7)
    )
    assert_same_alone(*engines, family)


@pytest.mark.parametrize(("name", "kind"), [file for file in FILES if file[1] == "gguf" or FAMILIES[file[0]].mxfp4])
def test_default_mode_does_not_depend_on_the_batch(tmp_path: Path, name: str, kind: str) -> None:
    """int8 activations for Q8_0 matrices (and MXFP4 experts), K and V in bf16."""
    family = FAMILIES[name]
    if kind == "folder":
        write_family(family, tmp_path / name)
    else:
        write_family_gguf(family, tmp_path / f"{name}.gguf", TensorType.Q8_0)
    default = {"activations": "auto", "kv_cache_dtype": "auto", "prefix_caching": False}
    engines = (
        exact_engine(tmp_path, family, kind, "cpu", max_num_batched_tokens=tokens, **default) for tokens in (64, 7)
    )
    assert_same_alone(*engines, family)
