"""Makes tests/oracle/golden/families.*: what transformers, in float32, says about a tiny model of every family.

    pip install '.[oracle]' && python -m tests.oracle.make_family_goldens [NAME ...]

families.npz holds for prompt i of each family greedy `NAME.i.tokens` int32 [STEPS] and `NAME.i.logits` float32
[STEPS, vocab], each row the logits from which that token is the largest. Without names all are made anew.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from tests.oracle.families import FAMILIES, GOLDEN, Family, seeded
from tests.oracle.tiny import write_safetensors

STEPS = 6


def make(family: Family) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The family's entry in families.json, and its goldens."""
    config = dict(family.config)
    architecture = getattr(transformers, config.pop("architectures")[0])
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        architecture(architecture.config_class(**config)).save_pretrained(folder)
        with safe_open(folder / "model.safetensors", "np") as file:
            names = file.keys()
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        write_safetensors(folder / "model.safetensors", seeded(family, shapes))
        network, info = architecture.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        assert not info["missing_keys"], info
        assert not info["unexpected_keys"], info
        saved = json.loads((folder / "config.json").read_text())
    goldens = {}
    for index, prompt in enumerate(family.prompts()):
        tokens, logits = continue_greedily(network.eval(), prompt, family.max_model_len or 0)
        goldens[f"{family.name}.{index}.tokens"], goldens[f"{family.name}.{index}.logits"] = tokens, logits
    return {"config": saved, "tensors": {name: list(shape) for name, shape in sorted(shapes.items())}}, goldens


@torch.inference_mode()
def continue_greedily(network: torch.nn.Module, prompt: np.ndarray, pass_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Every pass is of `pass_tokens` tokens at least, filled up behind the sequence."""
    tokens, rows = list(prompt), []
    for _ in range(STEPS):
        padded = tokens + [0] * (pass_tokens - len(tokens))
        logits = network(torch.tensor([padded]), use_cache=False).logits[0, len(tokens) - 1]
        rows.append(logits.numpy().copy())
        tokens.append(int(rows[-1].argmax()))
    return np.array(tokens[len(prompt) :], np.int32), np.stack(rows)


def main() -> None:
    wanted = sys.argv[1:] or list(FAMILIES)
    saved: dict[str, Any] = {}
    goldens: dict[str, np.ndarray] = {}
    if (GOLDEN / "families.json").exists():
        saved = json.loads((GOLDEN / "families.json").read_text())
        with np.load(GOLDEN / "families.npz") as file:
            goldens = {key: file[key] for key in file.files}
    saved = {name: entry for name, entry in saved.items() if name in FAMILIES and name not in wanted}
    goldens = {key: value for key, value in goldens.items() if key.split(".")[0] in saved}
    for name in wanted:
        entry, made = make(FAMILIES[name])
        saved[name] = entry
        goldens.update(made)
        print(name)
    lines = [f"{json.dumps(name)}: {json.dumps(saved[name], separators=(',', ':'))}" for name in sorted(saved)]
    (GOLDEN / "families.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    np.savez_compressed(GOLDEN / "families.npz", **dict(sorted(goldens.items())))


if __name__ == "__main__":
    main()
