"""Messages between the front process and the engine process, and their framing.

A frame is a 4-byte little-endian length and a msgpack body of one tagged struct; no pickle anywhere. The engine is
started with one end of a socketpair; end of file means death on both sides. Every engine has a generation number: the
front drops messages of an older generation.

Order: the front sends Start; the engine answers with Fetching and Progress messages and then Ready (or Failed and its
end). From then on Submit, Abort and at last Shutdown go one way; Tokens, Stats and Beat the other.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from octavo.config import EngineConfig
from octavo.engine.params import SamplingParams

MAX_FRAME_BYTES = 64 << 20
STEP_TOKENS_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_LENGTH = struct.Struct("<I")


class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """Front -> engine, the first message: what to load."""

    config: EngineConfig


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    """Front -> engine. `prompt` and `output` are little-endian int32 bytes; see engine.request.Request."""

    request_id: int
    prompt: bytes
    params: SamplingParams
    seed: int
    priority: int
    salt: tuple[tuple[str, str], ...]
    output: bytes = b""
    choice: int = 0


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """Front -> engine: all choices of these requests, or one choice (choice >= 0: a stop string was found)."""

    request_ids: list[int]
    choice: int = -1


class Shutdown(msgspec.Struct, frozen=True, array_like=True, tag="shutdown"):
    """Front -> engine: end now (the front has drained already)."""


class Progress(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """Engine -> front while starting: a phase has ended, after so many seconds; `detail` is for the log."""

    generation: int
    phase: str
    seconds: float
    detail: str = ""


class Fetching(msgspec.Struct, frozen=True, array_like=True, tag="fetching"):
    """Engine -> front while the model's files are fetched, now and then: `what` is being done, bytes so far of all."""

    generation: int
    what: str
    done_bytes: int
    total_bytes: int


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """Engine -> front: weights are loaded and a warm-up step has run.

    vocab_size: rows of the embedding. kv_groups: a token takes a slot of a page in each. sampling_defaults: the model's
    own, SamplingParams field -> value, as sampling_source says.
    """

    generation: int
    max_model_len: int
    vocab_size: int
    num_pages: int
    page_size: int
    kv_bytes_per_token: int
    fingerprint: str
    facts: dict[str, str]
    sampling_defaults: dict[str, float] = {}
    sampling_source: str = ""
    kv_groups: int = 1


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """Engine -> front: it cannot start (or go on); one sentence for the user."""

    generation: int
    message: str


class Tokens(msgspec.Struct, frozen=True, array_like=True, tag="tokens"):
    """Engine -> front, one per step: all new tokens in columns (engine.request.StepOutputs as raw little-endian bytes).

    request_ids int64, choices int32, tokens int32, finish uint8, cached_tokens int32, queued_s float32; logprobs
    float32 [N], top_ids int32 and top_logprobs float32 [N, top_width], empty when nobody asked. `message` explains
    Finish.ERROR.
    """

    generation: int
    step_id: int
    request_ids: bytes
    choices: bytes
    tokens: bytes
    finish: bytes
    cached_tokens: bytes
    queued_s: bytes
    logprobs: bytes = b""
    top_ids: bytes = b""
    top_logprobs: bytes = b""
    top_width: int = 0
    message: str = ""


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True, tag="prompt_logprobs"):
    """Engine -> front, before the Tokens of the same step: engine.request.PromptLogprobs as raw little-endian bytes.

    request_ids int64, positions int32, logprobs float32; top_ids int32 and top_logprobs float32 [M, top_width].
    """

    generation: int
    request_ids: bytes
    positions: bytes
    logprobs: bytes
    top_ids: bytes
    top_logprobs: bytes
    top_width: int


class Stats(msgspec.Struct, frozen=True, array_like=True, tag="stats"):
    """Engine -> front, a few times a second while busy and once when it falls idle; counters are totals since start.

    step_tokens: how many steps carried how many tokens: one number for each of STEP_TOKENS_BOUNDS (inclusive; not
    cumulative), and one for steps above the last of them.
    """

    generation: int
    running: int
    waiting: int
    pages_total: int
    pages_held: int
    pages_cached: int
    slots_held: int
    slots_filled: int
    waste_ratio_mean: float
    steps: int
    preemptions: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    aborted: int
    forward_s: float
    step_overhead_s: float
    busy_s: float
    step_tokens: list[int] = []


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """Engine -> front, twice a second from a thread of its own once it is ready: the process runs.

    turns: grows with every turn of the engine's loop; while it stands still and `busy`, one step hangs.
    """

    generation: int
    turns: int
    busy: bool


FrontMessage = Start | Submit | Abort | Shutdown
EngineMessage = Fetching | Progress | Ready | Failed | PromptLogprobs | Tokens | Stats | Beat

_encoder = msgspec.msgpack.Encoder()
_front_decoder = msgspec.msgpack.Decoder(FrontMessage)
_engine_decoder = msgspec.msgpack.Decoder(EngineMessage)


class FrameError(ValueError):
    """A frame that is too long or does not decode: the peer is not ours, or broken."""


def columns(message: Tokens) -> list[tuple[int, int, int, int]]:
    """(request id, choice, token, finish) of every row. Raises FrameError when the columns differ in length.

    Plain ints through memoryview: for the few dozen rows of a step that is faster than numpy.
    """
    try:
        rows = list(
            zip(
                memoryview(message.request_ids).cast("q").tolist(),
                memoryview(message.choices).cast("i").tolist(),
                memoryview(message.tokens).cast("i").tolist(),
                message.finish,
                strict=True,
            )
        )
    except (TypeError, ValueError) as error:
        raise FrameError(f"a tokens message has columns of different lengths: {error}") from error
    n, width = len(rows), message.top_width
    asked = 4 * n if message.logprobs else 0
    if not len(message.cached_tokens) == len(message.queued_s) == 4 * n or len(message.logprobs) != asked:
        raise FrameError("a tokens message has columns of different lengths")
    if len(message.top_ids) != asked * width or len(message.top_logprobs) != asked * width:
        raise FrameError(f"a tokens message has no {width} alternatives in each row")
    return rows


def prompt_rows(message: PromptLogprobs) -> list[tuple[int, int, float, list[tuple[int, float]]]]:
    """(request id, position, log-probability, alternatives by likelihood) of each entry. Raises FrameError."""
    width = message.top_width
    try:
        ids = memoryview(message.request_ids).cast("q").tolist()
        positions = memoryview(message.positions).cast("i").tolist()
        logprobs = memoryview(message.logprobs).cast("f").tolist()
        top_ids = memoryview(message.top_ids).cast("i").tolist()
        top_logprobs = memoryview(message.top_logprobs).cast("f").tolist()
    except TypeError as error:
        raise FrameError(f"a prompt_logprobs message has broken columns: {error}") from error
    n = len(ids)
    if not n == len(positions) == len(logprobs) or not n * width == len(top_ids) == len(top_logprobs):
        raise FrameError("a prompt_logprobs message has columns of different lengths")
    pairs = list(zip(top_ids, top_logprobs, strict=True))
    return [
        (ids[i], positions[i], logprobs[i], [pair for pair in pairs[i * width : (i + 1) * width] if pair[0] >= 0])
        for i in range(n)
    ]


def encode(message: FrontMessage | EngineMessage) -> bytes:
    """One frame, length prefix included. Raises FrameError above MAX_FRAME_BYTES."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(body)} bytes is above the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a byte stream into frames: `feed(data)` returns the messages that are now complete."""

    def __init__(self, from_engine: bool) -> None:
        self._decoder: msgspec.msgpack.Decoder[Any] = _engine_decoder if from_engine else _front_decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        self._buffer += data
        messages: list[Any] = []
        start = 0
        while len(self._buffer) - start >= 4:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes is above the limit of {MAX_FRAME_BYTES}")
            if len(self._buffer) - start - 4 < length:
                break
            body = memoryview(self._buffer)[start + 4 : start + 4 + length]
            try:
                messages.append(self._decoder.decode(body))
            except msgspec.MsgspecError as error:
                raise FrameError(f"a frame does not decode: {error}") from error
            finally:
                body.release()
            start += 4 + length
        del self._buffer[:start]
        return messages
