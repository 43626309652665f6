"""What to say of a flag that a verb doesn't have: the one of another server that was meant, or a close spelling."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.config import ServerConfig, settings

# Under this, the nearest spelling is a guess that misleads (--ctx-size and --block-size have 0.73).
_LEAST_SIMILARITY = 0.8

#: Flags of llama.cpp, vLLM and Ollama by what they are called here.
RENAMED = {
    "-m": "--model",
    "--model-path": "--model",
    "-hf": "--model",
    "--hf-repo": "--model",
    "-a": "--served-model-name",
    "--alias": "--served-model-name",
    "-c": "--max-model-len",
    "--ctx-size": "--max-model-len",
    "--num-ctx": "--max-model-len",
    "--context-length": "--max-model-len",
    "-np": "--max-num-seqs",
    "--parallel": "--max-num-seqs",
    "-t": "--threads",
    "-tb": "--threads",
    "--threads-batch": "--threads",
    "-b": "--max-num-batched-tokens",
    "-ub": "--max-num-batched-tokens",
    "--batch-size": "--max-num-batched-tokens",
    "--ubatch-size": "--max-num-batched-tokens",
    "-ctk": "--kv-cache-dtype",
    "-ctv": "--kv-cache-dtype",
    "--cache-type-k": "--kv-cache-dtype",
    "--cache-type-v": "--kv-cache-dtype",
    "-n": "--max-tokens",
    "--n-predict": "--max-tokens",
    "--predict": "--max-tokens",
    "--max-new-tokens": "--max-tokens",
    "--temp": "--temperature",
    "-s": "--seed",
    "-sys": "--system",
    "--system-prompt": "--system",
    "--chat-template-file": "--chat-template",
    "--uvicorn-log-level": "--log-level",
}

_ONE_PROCESS = "one engine process uses all the cores it may (--threads)"
_NO_GPU = "it runs on CPUs only"
#: Flags of theirs that have no counterpart, and why.
ABSENT = {
    "--gpu-memory-utilization": "--kv-cache-memory-bytes sets the size of the page pool",
    "--cpu-offload-gb": _NO_GPU,
    "--swap-space": "sequences that lose their pages are computed again",
    "--tensor-parallel-size": _ONE_PROCESS,
    "-tp": _ONE_PROCESS,
    "--pipeline-parallel-size": _ONE_PROCESS,
    "-pp": _ONE_PROCESS,
    "--data-parallel-size": _ONE_PROCESS,
    "-dp": _ONE_PROCESS,
    "-ngl": _NO_GPU,
    "--gpu-layers": _NO_GPU,
    "--n-gpu-layers": _NO_GPU,
    "--device": _NO_GPU,
    "-fa": "attention always is computed page by page",
    "--flash-attn": "attention always is computed page by page",
    "--enforce-eager": "there are no graphs to turn off",
    "--enable-chunked-prefill": "prompts always are computed in chunks",
    "--jinja": "chat templates always are Jinja",
    "--trust-remote-code": "code from model folders is never run",
    "--dtype": "weights keep the precision of their file; --activations chooses what they are multiplied with",
    "--quantization": "weights are computed in the precision of their file",
    "--tokenizer": "the tokenizer comes with the model",
    "-p": 'the prompt is an argument of its own: octavo run "PROMPT"',
    "--prompt": 'the prompt is an argument of its own: octavo run "PROMPT"',
}


def advice(given: str, known: Iterable[str]) -> str:
    """The end of a sentence that says that `given` (perhaps with `=value`) is none of the flags in `known`."""
    flag = given.partition("=")[0]
    known = list(known)
    if flag in ABSENT:
        return f"; Octavo has none: {ABSENT[flag]}."
    meant = RENAMED.get(flag, flag)
    if meant != flag and meant in known:
        return f"; use {meant}."
    if meant not in known and meant in {setting.flag for setting in settings(ServerConfig)}:
        return f"; {meant} is a flag of `octavo serve`."
    return nearest(flag, known)


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that says that `name` is unknown: with the spelling that was meant, if one is close."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=_LEAST_SIMILARITY)
    return f"; did you mean {close[0]}?" if close else "."
