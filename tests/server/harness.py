"""A served fake engine in a process of its own, and plain clients for it."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

LAUNCH = Path(__file__).parent / "launch.py"
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The OpenAI error object; the shape is checked here for every test."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        return error


class Process:
    """A server process and its log. Use as a context manager: at the end nothing of it is left."""

    def __init__(self, command: list[str], wait_for: str) -> None:
        self._log = tempfile.NamedTemporaryFile(prefix="octavo-test-", suffix=".log")  # noqa: SIM115
        self.process = subprocess.Popen(command, stderr=self._log)
        self.port = 0
        if wait_for:
            self.wait_for_log(wait_for)
            found = re.search(r"listening on http://\S+:(\d+)", self.log)
            assert found is not None, self.log
            self.port = int(found[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._log.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()

    @property
    def engine_pid(self) -> int:
        """The front's one child."""
        pid = self.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def wait_for_log(self, text: str, count: int = 1, limit_s: float = 20.0) -> None:
        def there() -> bool:
            assert self.process.poll() is None, f"exit code {self.process.returncode}\n{self.log}"
            return self.log.count(text) >= count

        until(there, limit_s, lambda: f"{text!r} is not in the log:\n{self.log}")

    def stop(self, number: int = signal.SIGTERM, limit_s: float = 10.0) -> int:
        self.process.send_signal(number)
        return self.process.wait(limit_s)

    # Clients

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
        return self.request("POST", path, json.dumps(body).encode(), {**JSON, **(headers or {})})

    def complete(self, prompt: Any = "abc", **fields: Any) -> Answer:
        return self.post("/v1/completions", {"prompt": prompt, **fields})

    def text(self, prompt: Any = "abc", **fields: Any) -> str:
        answer = self.complete(prompt, **fields)
        assert answer.status == 200, answer.body
        return str(answer.json["choices"][0]["text"])

    def stream(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Stream:
        return Stream(self.port, path, {**body, "stream": True}, headers or {})

    def metric(self, name: str, **labels: str) -> float:
        """The one sample of `vllm:name` whose labels include these."""
        found = [
            float(line.rpartition(" ")[2])
            for line in self.get("/metrics").body.decode().splitlines()
            if line.startswith(f"vllm:{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items())
        ]
        assert len(found) == 1, f"{name} {labels}: {found}"
        return found[0]


class Served(Process):
    """The real front before the fake engine: `launch.py` with these settings and fake engine options."""

    def __init__(
        self,
        model: Path,
        *options: str,
        engine: dict[str, Any] | None = None,
        server: dict[str, Any] | None = None,
        wait_for: str = "ready after",
    ) -> None:
        settings = {"port": 0, "log_level": "debug", **(server or {})}
        configs = [json.dumps({"model": str(model), **(engine or {})}), json.dumps(settings)]
        super().__init__([sys.executable, str(LAUNCH), *configs, "--eos", "258", *options], wait_for)

    def is_well(self) -> None:
        """P of CASES: a small completion still answers."""
        assert self.text("well", max_tokens=4) == "well"


class Octavo(Process):
    """`octavo serve` with these flags: nothing is fake."""

    def __init__(self, *flags: str, wait_for: str = "ready after") -> None:
        main = "import sys; from octavo.cli.main import main; sys.exit(main())"
        super().__init__([sys.executable, "-c", main, "serve", "--port", "0", *flags], wait_for)


class Stream:
    """A streamed request, read event by event; closing it early is leaving."""

    def __init__(self, port: int, path: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        data = json.dumps(body).encode()
        lines = [
            f"POST {path} HTTP/1.1",
            "Host: test",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
        ]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        self._response: http.client.HTTPResponse | None = None

    @property
    def response(self) -> http.client.HTTPResponse:
        if self._response is None:
            self._response = http.client.HTTPResponse(self.socket)
            self._response.begin()
        return self._response

    @property
    def status(self) -> int:
        return self.response.status

    def events(self) -> Iterator[str]:
        """Each event's data, to the end of the response."""
        assert self.status == 200, self.response.read()
        assert self.response.headers["content-type"].startswith("text/event-stream")
        lines: list[bytes] = []
        for line in self.response:
            if line != b"\n":
                lines.append(line)
                continue
            (one,) = lines
            assert one.startswith(b"data: ")
            yield one[6:].decode().rstrip("\n")
            lines = []
        assert not lines

    def chunks(self) -> list[Any]:
        """All chunks of a stream that ends well."""
        *events, last = self.events()
        assert last == "[DONE]"
        return [json.loads(event) for event in events]

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        self.socket.close()


def until(condition: Callable[[], bool], limit_s: float = 5.0, why: Callable[[], str] = lambda: "") -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"not within {limit_s} s; {why()}"
        time.sleep(0.02)
