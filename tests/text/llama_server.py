"""llama.cpp's own tokenizer, behind its server's /tokenize: the oracle for tokenizers of GGUF files.

Only scripts that make goldens use it. benchmarks/peers/llamacpp_build.py builds the server.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from octavo.formats.blocks import quantize
from octavo.formats.gguf_metadata import Value
from octavo.formats.gguf_write import write_gguf
from octavo.formats.tensor import Tensor, TensorType

_START_S = 60


class LlamaTokenizer:
    """A running server with one vocabulary."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def tokenize(self, text: str, control: bool) -> list[int]:
        """Ids of a text, without bos and eos. control: texts of control tokens stand for the tokens."""
        body = json.dumps({"content": text, "add_special": False, "parse_special": control}).encode()
        self._connection.request("POST", "/tokenize", body, {"Content-Type": "application/json"})
        with self._connection.getresponse() as response:
            ids: list[int] = json.loads(response.read())["tokens"]
        return ids


@contextmanager
def llama_tokenizer(server: Path, tokenizer: Mapping[str, Value]) -> Iterator[LlamaTokenizer]:
    """Starts `server` with a model of next to no weights and the metadata `tokenizer` (tokenizer.ggml.*)."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        path = Path(folder) / "model.gguf"
        _write_model(path, tokenizer)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = [str(server), "-m", str(path), "--host", "127.0.0.1", "--port", str(port)]
        command += ["-c", "64", "-t", "1", "-np", "1", "--no-warmup", "--log-disable"]
        with (Path(folder) / "log").open("w+") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                _wait(process, port)
                yield LlamaTokenizer(port)
            finally:
                process.terminate()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"llama-server ended with status {process.returncode}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError("llama-server did not get ready")


def _write_model(path: Path, tokenizer: Mapping[str, Value]) -> None:
    """One layer of Llama, 32 wide."""
    hidden = 32
    metadata = {
        "general.architecture": "llama",
        "llama.context_length": 64,
        "llama.embedding_length": hidden,
        "llama.block_count": 1,
        "llama.feed_forward_length": hidden,
        "llama.attention.head_count": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        **tokenizer,
    }
    tokens = tokenizer["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    square = np.zeros((hidden, hidden), np.float32)
    layer = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    tensors: list[Tensor] = [
        quantize("token_embd.weight", np.zeros((len(tokens), hidden), np.float32), TensorType.Q8_0),
        quantize("output_norm.weight", np.ones(hidden, np.float32), TensorType.F32),
        *(quantize(f"blk.0.{name}.weight", square, TensorType.F32) for name in layer),
        *(
            quantize(f"blk.0.{name}.weight", np.ones(hidden, np.float32), TensorType.F32)
            for name in ("attn_norm", "ffn_norm")
        ),
    ]
    write_gguf(path, metadata, tensors)
