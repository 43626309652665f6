"""A tiny OpenAI server on asyncio streams, whose answers the tests choose."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Answer = Callable[["Exchange"], Awaitable[None]]


@dataclass
class Exchange:
    """One request as it arrived, and the writer to answer on."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    writer: asyncio.StreamWriter

    async def send_json(self, status: int, content: Any) -> None:
        payload = json.dumps(content).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(payload)}\r\n\r\n".encode()
        self.writer.write(head + payload)
        await self.writer.drain()

    async def start_stream(self) -> None:
        self.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    async def send_event(self, content: Any) -> None:
        data = content if isinstance(content, str) else json.dumps(content)
        payload = f"data: {data}\n\n".encode()
        self.writer.write(b"%x\r\n%s\r\n" % (len(payload), payload))
        await self.writer.drain()

    async def end_stream(self) -> None:
        await self.send_event("[DONE]")
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()


async def good_answer(exchange: Exchange, gap_s: float = 0.0) -> None:
    """max_tokens pieces of text, a finish chunk and usage."""
    count = exchange.body["max_tokens"]
    await exchange.start_stream()
    for index in range(count):
        await exchange.send_event({"choices": [{"text": f" {index}", "finish_reason": None}]})
        await asyncio.sleep(gap_s)
    await exchange.send_event({"choices": [{"text": "", "finish_reason": "length"}]})
    usage = {"prompt_tokens": 7, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": 4}}
    await exchange.send_event({"choices": [], "usage": usage})
    await exchange.end_stream()


@dataclass
class FakeServer:
    """Serves /v1/models itself; hands everything else to `answer`."""

    answer: Answer
    port: int = 0
    connections: int = 0
    in_flight: int = 0
    peak: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                exchange = await _read(reader, writer)
                if exchange.path == "/v1/models":
                    await exchange.send_json(200, {"data": [{"id": "fake-model"}]})
                    continue
                self.bodies.append(exchange.body)
                self.headers.append(exchange.headers)
                self.in_flight += 1
                self.peak = max(self.peak, self.in_flight)
                try:
                    await self.answer(exchange)
                finally:
                    self.in_flight -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, path, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Exchange(method, path, headers, json.loads(body) if body else {}, writer)


@contextmanager
def serving(answer: Answer) -> Iterator[FakeServer]:
    """The server on a free port, in a thread of its own."""
    server = FakeServer(answer)
    loop = asyncio.new_event_loop()
    started = threading.Event()

    async def main() -> None:
        listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
        server.port = listener.sockets[0].getsockname()[1]
        started.set()
        await listener.serve_forever()

    task = loop.create_task(main())

    def work() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pending = asyncio.all_tasks(loop)
            for one in pending:
                one.cancel()
            loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)
