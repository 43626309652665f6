"""Makes tests/oracle/golden: what transformers, in float32, says about the tiny models and the default model.

    pip install '.[oracle]' && python -m tests.oracle.make_goldens [tiny] [default]

tiny.npz holds for every tiny model `NAME.inv_freq`, and for prompt i greedy `NAME.i.tokens` int32 [STEPS] and
`NAME.i.logits` float32 [STEPS, vocab], each row the logits from which that token is the largest.

smollm2-135m-instruct.json holds greedy continuations of ShareGPT prompts (chat template applied) on the weights of the
default model's own file, de-quantised: id of the conversation, prompt and continuation as token ids.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import transformers
from tests.oracle.tiny import MODELS, TinyModel, weights

from octavo.bench.dataset import whole_records
from octavo.formats.blocks import dequantize
from octavo.formats.gguf import GgufFile
from octavo.formats.resolve import resolve, resolve_dataset
from octavo.models.load import load_model
from octavo.models.names import HF
from octavo.text.chat import load_chat_template
from octavo.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parent / "golden"
DEFAULT_MODEL = "smollm2-135m-instruct"
STEPS = 6
PROMPTS, CONTINUATION = 20, 64
PROMPT_TOKENS = range(16, 201)


def build(model: TinyModel) -> torch.nn.Module:
    """The transformers model of a tiny one, all weights set."""
    config = dict(model.full_config)
    architecture = config.pop("architectures")[0]
    kind = architecture.removesuffix("ForCausalLM")
    config_class = getattr(transformers, kind + "Config")
    network = getattr(transformers, architecture)(config_class(**config, attn_implementation="sdpa"))
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


def make_tiny() -> None:
    golden = {}
    for name, model in MODELS.items():
        network = build(model)
        golden[f"{name}.inv_freq"] = network.model.rotary_emb.inv_freq.numpy()
        for index, prompt in enumerate(model.prompts()):
            tokens, logits = continue_greedily(network, prompt)
            golden[f"{name}.{index}.tokens"], golden[f"{name}.{index}.logits"] = tokens, logits
        print(name)
    np.savez_compressed(GOLDEN / "tiny.npz", **golden)


def default_prompts() -> list[tuple[str, list[int]]]:
    """(conversation id, prompt ids) of the first conversations whose first turn is a human's and of a usual length."""
    files = resolve(DEFAULT_MODEL)
    tokenizer = Tokenizer.load(files)
    template = load_chat_template(files, tokenizer)
    prompts: list[tuple[str, list[int]]] = []
    for record in whole_records(resolve_dataset("sharegpt")):
        turn = record["conversations"][0] if record["conversations"] else {"from": "nobody"}
        if turn["from"] == "human" and len(tokenizer.encode(turn["value"])) in PROMPT_TOKENS:
            prompts.append((record["id"], template.encode([{"role": "user", "content": turn["value"]}]).ids))
            if len(prompts) == PROMPTS:
                break
    return prompts


def build_default() -> torch.nn.Module:
    """transformers' Llama on our file's tensors: de-quantised, rows of Q and K in its order."""
    files = resolve(DEFAULT_MODEL)
    loaded, metadata = load_model(files), GgufFile.open(files.path).metadata
    layer = loaded.spec.layers[0]
    config = transformers.LlamaConfig(
        vocab_size=loaded.spec.vocab,
        hidden_size=loaded.spec.hidden,
        intermediate_size=layer.ffn.hidden,
        num_hidden_layers=len(loaded.spec.layers),
        num_attention_heads=layer.mixer.heads,
        num_key_value_heads=layer.mixer.kv_heads,
        max_position_embeddings=loaded.spec.context,
        rms_norm_eps=layer.norm.eps,
        rope_theta=metadata.number("llama.rope.freq_base"),
        tie_word_embeddings=loaded.spec.tied_head,
        attn_implementation="eager",
    )
    network = transformers.LlamaForCausalLM(config).float().eval()
    state = {str(HF.entry(slot)): torch.from_numpy(vector) for slot, vector in loaded.weights.vectors.items()}
    for slot, weight in loaded.weights.matrices.items():
        matrix = dequantize(weight.tensor)
        state[str(HF.entry(slot))] = torch.from_numpy(matrix if weight.row_index is None else matrix[weight.row_index])
    missing, unexpected = network.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], []), (missing, unexpected)
    network.tie_weights()
    return network


@torch.inference_mode()
def write_continuations(
    model: str, network: torch.nn.Module, prompts: Iterable[tuple[str, list[int]]], count: int
) -> None:
    """A line for each prompt (conversation id, token ids): with `count` greedy tokens after it."""
    lines = []
    for name, prompt in prompts:
        tokens: list[int] = []
        fed, cache = prompt, None
        for _ in range(count):
            output = network(torch.tensor([fed]), past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            tokens.append(int(output.logits[0, -1].argmax()))
            fed = tokens[-1:]
        lines.append(json.dumps({"id": name, "prompt": prompt, "tokens": tokens}, separators=(",", ":")))
        print(name, len(prompt), flush=True)
    (GOLDEN / f"{model}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["tiny", "default"]
    if "tiny" in wanted:
        make_tiny()
    if "default" in wanted:
        write_continuations(DEFAULT_MODEL, build_default(), default_prompts(), CONTINUATION)
