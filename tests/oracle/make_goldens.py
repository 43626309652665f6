"""Makes tests/oracle/golden/tiny.npz: what transformers, in float32, says about the tiny models.

    pip install '.[oracle]' && python -m tests.oracle.make_goldens

For every model: `NAME.inv_freq`, and for prompt i greedy `NAME.i.tokens` int32 [STEPS] and `NAME.i.logits` float32
[STEPS, vocab], each row the logits from which that token is the largest.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers
from tests.oracle.tiny import MODELS, TinyModel, weights

GOLDEN = Path(__file__).parent / "golden" / "tiny.npz"
STEPS = 6


def build(model: TinyModel) -> torch.nn.Module:
    """The transformers model of a tiny one, all weights set."""
    config = dict(model.full_config)
    architecture = config.pop("architectures")[0]
    kind = architecture.removesuffix("ForCausalLM")
    config_class = getattr(transformers, kind + "Config")
    network = getattr(transformers, architecture)(config_class(**config, attn_implementation="eager"))
    state = {name: torch.from_numpy(array) for name, array in weights(model).items()}
    missing, unexpected = network.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    network.tie_weights()
    return network.float().eval()


@torch.inference_mode()
def continue_greedily(network: torch.nn.Module, prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    tokens, rows = list(prompt), []
    for _ in range(STEPS):
        logits = network(torch.tensor([tokens]), use_cache=False).logits[0, -1]
        rows.append(logits.numpy().copy())
        tokens.append(int(rows[-1].argmax()))
    return np.array(tokens[len(prompt) :], np.int32), np.stack(rows)


def main() -> None:
    golden = {}
    for name, model in MODELS.items():
        network = build(model)
        golden[f"{name}.inv_freq"] = network.model.rotary_emb.inv_freq.numpy()
        for index, prompt in enumerate(model.prompts()):
            tokens, logits = continue_greedily(network, prompt)
            golden[f"{name}.{index}.tokens"], golden[f"{name}.{index}.logits"] = tokens, logits
        print(name, {key: golden[key].tolist() for key in golden if key.startswith(name) and key.endswith("tokens")})
    np.savez_compressed(GOLDEN, **golden)


if __name__ == "__main__":
    main()
