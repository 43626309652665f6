"""What the machine or the backend can't do ends every command with one sentence and a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.oracle.tiny import MODELS, byte_tokenizer, write_gguf_file
from tests.server.tiny_model import TEMPLATE

VERBS = {
    "serve": ["serve", "--port", "0"],
    "run": ["run", "hello", "--max-tokens", "2"],
    "throughput": ["bench", "throughput", "--num-prompts", "1", "--num-warmups", "0"],
    "roofline": ["bench", "roofline", "--rows", "1"],
}
#: Loaded by every Python that starts with it on its path: a CPU without AVX-512.
OLD_CPU = """
from octavo import _native
find_level = _native.find_level
def old_cpu(name):
    if "avx512" in name:
        raise ValueError(f"ISA level '{name}': this CPU or operating system does not support that ISA level")
    return find_level(name)
_native.find_level = old_cpu
_native.supported_levels = lambda: ["avx2", "generic"]
"""
FLAG, LATER = 2, 1  # exit status: refused as a flag, or once the machine was asked


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tiny") / "tied.gguf"
    return str(write_gguf_file(MODELS["tied"], path, extra=byte_tokenizer(TEMPLATE)))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    turns = [{"from": "human", "value": "tell me more " * 10}, {"from": "gpt", "value": "well then " * 10}]
    path = tmp_path_factory.mktemp("data") / "data.json"
    path.write_text(json.dumps([{"conversations": turns}]))
    return str(path)


@pytest.fixture(scope="module")
def old_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old-cpu")
    (folder / "sitecustomize.py").write_text(OLD_CPU)
    return folder


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("flags", "status", "says"),
    [
        (("--threads", "0"), FLAG, "--threads is 0; it must be an integer from 1 to 1024"),
        (("--threads", "999"), LATER, "threads is 999; it must be at most"),
        (("--isa", "avx512"), LATER, "ISA level 'avx512': this CPU or operating system does not support"),
        (("--isa", "pentium"), FLAG, "--isa is 'pentium'; it must be one of generic, avx2, avx512, avx512_bf16"),
        (
            ("--kv-cache-dtype", "int4"),
            FLAG,
            "--kv-cache-dtype is 'int4'; it must be one of auto, f32, bf16, f16, int8",
        ),
        (("--activations", "int8"), LATER, "with activations int8: this weight format can't be multiplied"),
    ],
    ids=lambda value: "=".join(value)[2:] if isinstance(value, tuple) else "",
)
def test_one_sentence_and_a_failure(
    verb: str, flags: tuple[str, ...], status: int, says: str, model: str, dataset: str, old_cpu: Path
) -> None:
    if "999" in flags and 2 * (os.cpu_count() or 1) >= 999:
        pytest.skip("this machine has CPUs for 999 threads")
    command = [sys.executable, "-m", "octavo.cli.main", *VERBS[verb], "--model", model, "--log-level", "error", *flags]
    command += ["--dataset", dataset] if verb == "throughput" else []
    environment = {**os.environ, "PYTHONPATH": str(old_cpu)}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    last = done.stderr.splitlines()[-1]
    assert says in last
    assert "Traceback" not in done.stderr
    if verb != "roofline":  # which says what it is doing
        assert done.stderr.count("\n") == 1
