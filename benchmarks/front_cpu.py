"""Processor time of the HTTP process for each generated token, with the tests' fake engine behind it.

    python benchmarks/front_cpu.py [--streams 32] [--tokens 1000] [--step-ms 10] [--whole] [--logprobs K]

The front shares its cores with the kernels, so this is what streaming takes from them: at 1,000 tokens a second, 25 us
a token are 2.5 % of one core. Socket writes (one for each stream and step) are most of it.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.server.harness import Served
from tests.server.tiny_model import write_tiny_model

ROUNDS = 3


def cpu_s(pid: int) -> float:
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def read_all(sockets: list[socket.socket], ending: bytes) -> int:
    """Read every response to its end; returns the bytes received."""
    selector = selectors.DefaultSelector()
    tails = dict.fromkeys(sockets, b"")
    for one in sockets:
        selector.register(one, selectors.EVENT_READ)
    received = 0
    while selector.get_map():
        for key, _ in selector.select():
            one = key.fileobj
            assert isinstance(one, socket.socket)
            data = one.recv(1 << 16)
            received += len(data)
            tails[one] = (tails[one] + data)[-len(ending) :]
            if not data or tails[one] == ending:
                selector.unregister(one)
    return received


def measure(served: Served, arguments: argparse.Namespace) -> None:
    body = {"messages": [{"role": "user", "content": "The quick brown fox jumps over the lazy dog."}]}
    fields = {"max_tokens": arguments.tokens, "stream": not arguments.whole, "ignore_eos": True}
    if arguments.logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": arguments.logprobs}
    data = json.dumps({**body, **fields}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: b\r\nContent-Length: {len(data)}\r\n\r\n"
    sockets = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(arguments.streams)]
    before_s, began_s = cpu_s(served.process.pid), time.monotonic()
    for one in sockets:
        one.sendall(head.encode() + data)
    received = read_all(sockets, b'"chat.completion"}' if arguments.whole else b"0\r\n\r\n")
    took_s, used_s = time.monotonic() - began_s, cpu_s(served.process.pid) - before_s
    count = arguments.streams * arguments.tokens
    print(
        f"{count / took_s:7.0f} tokens/s, {received / count:4.0f} bytes a token, "
        f"front {used_s / count * 1e6:5.1f} us a token ({used_s / took_s:.1%} of a core)",
        flush=True,
    )
    for one in sockets:
        one.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--whole", action="store_true", help="answers that are not streamed")
    parser.add_argument("--logprobs", type=int)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder) / "tiny.gguf")
        with Served(model, "--step-ms", str(arguments.step_ms), engine={"max_model_len": 1 << 20}) as served:
            for _ in range(ROUNDS):
                measure(served, arguments)


if __name__ == "__main__":
    main()
