"""The part of an OpenAI server that the load generator needs, around an engine that has none. Standard library only.

It runs in a peer's environment, so that a library is measured as the servers are: over HTTP, streamed, with the same
load generator. The engine runs in a thread of its own; all tokens of one step reach the event loop in one call.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

READY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(eq=False)
class Job:
    """One completion: exactly `max_tokens` greedy tokens for `prompt`. prompt_tokens is for the engine to fill in."""

    prompt: str
    max_tokens: int
    prompt_tokens: int = 0
    pieces: asyncio.Queue[Piece] = field(default_factory=asyncio.Queue)


@dataclass
class Piece:
    """What a step made for one job."""

    job: Job
    text: str
    tokens: int
    last: bool


Inbox = queue.SimpleQueue  # of Job
Emit = Callable[[Iterable[Piece]], None]


def serve(port: int, run: Callable[[Inbox[Job], Emit], None]) -> None:
    """Serve 127.0.0.1:`port`; `run(inbox, emit)` is the engine and never returns."""
    asyncio.run(_serve(port, run))


async def _serve(port: int, run: Callable[[Inbox[Job], Emit], None]) -> None:
    loop = asyncio.get_running_loop()
    inbox: Inbox[Job] = queue.SimpleQueue()

    def deliver(pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            piece.job.pieces.put_nowait(piece)

    def emit(pieces: Iterable[Piece]) -> None:
        loop.call_soon_threadsafe(deliver, list(pieces))

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await _answer(reader, writer, inbox)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    failed: asyncio.Future[None] = loop.create_future()

    def engine() -> None:
        try:
            run(inbox, emit)
        except BaseException as error:
            loop.call_soon_threadsafe(failed.set_exception, RuntimeError(f"the engine's thread failed: {error!r}"))
            raise

    threading.Thread(target=engine, daemon=True).start()
    async with await asyncio.start_server(connection, "127.0.0.1", port):
        await failed


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inbox: Inbox[Job]) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    path = request.split()[1]
    if path == "/v1/models":
        listed = json.dumps({"object": "list", "data": [{"id": "peer", "object": "model"}]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(listed) + listed)
    elif path == "/health":
        writer.write(READY)
    else:
        fields = json.loads(body)
        job = Job(fields["prompt"], fields["max_tokens"])
        inbox.put(job)
        await _stream(writer, job)
    await writer.drain()


async def _stream(writer: asyncio.StreamWriter, job: Job) -> None:
    writer.write(STREAM)
    tokens, last = 0, False
    while not last:
        piece = await job.pieces.get()
        tokens, last = tokens + piece.tokens, piece.last
        reason = '"length"' if last else "null"
        _event(writer, f'{{"choices":[{{"text":{json.dumps(piece.text)},"index":0,"finish_reason":{reason}}}]}}')
        await writer.drain()
    usage = {"prompt_tokens": job.prompt_tokens, "completion_tokens": tokens}
    _event(writer, json.dumps({"choices": [], "usage": usage}))
    _event(writer, "[DONE]")
    writer.write(b"0\r\n\r\n")


def _event(writer: asyncio.StreamWriter, data: str) -> None:
    payload = f"data: {data}\n\n".encode()
    writer.write(b"%x\r\n%s\r\n" % (len(payload), payload))
