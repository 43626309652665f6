"""Memory while a model loads: what quantised modules are made into is there a module at a time, not all at once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.quantised_models import LAYOUTS, Stored, write_folder

from octavo.cli import doctor
from octavo.config import EngineConfig
from octavo.formats.quantised.folder import QuantisedFolder

#: So that the embeddings, which are packed first, take about as much as what all modules are made into.
VOCABS = {"int8-rows": 70_000, "gptq-32": 39_000, "awq-128": 46_000, "fp8-blocks": 135_000}
SIZES = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 24, "num_attention_heads": 8}
MODULES = {
    "self_attn.q_proj": (512, 512), "self_attn.k_proj": (128, 512), "self_attn.v_proj": (128, 512),
    "self_attn.o_proj": (512, 512), "mlp.gate_proj": (1536, 512), "mlp.up_proj": (1536, 512),
    "mlp.down_proj": (512, 1536),
}  # fmt: skip

#: Prints the peak above what was resident before the model was opened, and what was packed.
LOAD = """
import sys
from pathlib import Path
from octavo.backends.ops import PlanLimits
from octavo.config import EngineConfig
from octavo.formats.model_files import ModelFiles
from octavo.models.load import load_model
from octavo.runtime.build import kv_spec, make_backend, make_plan

def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))

config = EngineConfig(threads=1)
backend = make_backend(config)
before = resident("VmRSS:")
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
model = load_model(ModelFiles("safetensors", Path(sys.argv[1]), "m"))
limits = PlanLimits(max_tokens=4, max_seqs=1, max_blocks=4, num_pages=4, vocab=model.spec.vocab)
plan = make_plan(model, backend, limits, kv_spec(model.spec, config))
print(resident("VmHWM:") - before, plan.weight_bytes)
"""


def int8(rng: np.random.Generator, rows: int, width: int) -> Stored:
    return {
        "weight": ("I8", rng.integers(-127, 128, (rows, width), np.int8)),
        "weight_scale": ("BF16", np.full((rows, 1), 0x3C00, np.uint16)),
    }


def gptq(rng: np.random.Generator, rows: int, width: int) -> Stored:
    return {
        "qweight": ("I32", rng.integers(-(2**31), 2**31, (width // 8, rows), np.int32)),
        "qzeros": ("I32", np.full((width // 32, rows // 8), 0x77777777, np.int32)),
        "scales": ("F16", np.full((width // 32, rows), 0.01, np.float16)),
    }


def awq(rng: np.random.Generator, rows: int, width: int) -> Stored:
    return {
        "qweight": ("I32", rng.integers(-(2**31), 2**31, (width, rows // 8), np.int32)),
        "qzeros": ("I32", rng.integers(-(2**31), 2**31, (width // 128, rows // 8), np.int32)),
        "scales": ("F16", np.full((width // 128, rows), 0.01, np.float16)),
    }


def fp8(rng: np.random.Generator, rows: int, width: int) -> Stored:
    return {
        "weight": ("F8_E4M3", rng.integers(0, 0x70, (rows, width), np.uint8)),
        "weight_scale_inv": ("F32", np.full((-(-rows // 128), -(-width // 128)), 0.01, np.float32)),
    }


MAKERS: dict[str, Callable[[np.random.Generator, int, int], Stored]] = {
    "int8-rows": int8, "gptq-32": gptq, "awq-128": awq, "fp8-blocks": fp8,
}  # fmt: skip


def write(folder: Path, layout: str) -> Path:
    """61 million weights in the layers."""
    rng = np.random.default_rng(3)
    vocab = VOCABS[layout]
    stored: Stored = {
        "model.embed_tokens.weight": ("BF16", rng.integers(0x3000, 0x3C00, (vocab, 512), np.uint16)),
        "model.norm.weight": ("F32", np.ones(512, np.float32)),
    }
    for layer in range(SIZES["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            stored[f"{prefix}{name}.weight"] = ("F32", np.ones(512, np.float32))
        for name, shape in MODULES.items():
            parts = MAKERS[layout](rng, *shape)
            stored.update((f"{prefix}{name}.{part}", value) for part, value in parts.items())
    write_folder(folder, stored, LAYOUTS[layout].config)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    sizes = {**SIZES, "vocab_size": vocab, "num_key_value_heads": 2, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps({**config, **sizes}))
    return folder


@pytest.fixture(scope="module", params=MAKERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = write(tmp_path_factory.mktemp("quantised") / "m", request.param)
    yield path
    shutil.rmtree(path)  # 100 to 200 MB


def test_a_quantised_folder_peaks_little_above_what_is_kept(folder: Path) -> None:
    """Were all modules made before the first matrix is packed, the peak would be over 1.4 times what is kept."""
    child = subprocess.run([sys.executable, "-c", LOAD, str(folder)], capture_output=True, text=True, check=True)
    peak, kept = map(int, child.stdout.split())
    assert kept > 20e6
    assert peak < 1.15 * kept + 8e6, f"{peak / kept:.3f} times"


def test_looking_at_a_folder_converts_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(self: QuantisedFolder, name: str) -> Any:
        raise AssertionError(f"{name} was made")

    monkeypatch.setattr(QuantisedFolder, "_data", made)
    found = doctor.model(EngineConfig(model=str(folder)))
    assert found.problems == []
    assert str(folder) in found.text
