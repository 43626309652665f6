"""Events come out the same however the bytes are split."""

from __future__ import annotations

import itertools

import pytest

from octavo.bench import sse
from octavo.bench.sse import EventStream, EventTooLong

STREAM = (
    b": a comment\n\n"
    b'data: {"a": 1}\n\n'
    b"data:no space\r\n\r\n"
    b"event: x\nid: 3\ndata: two\ndata:  lines\n\n"
    b"data: caf\xc3\xa9 \xf0\x9f\x8e\x89\r\r"
    b"data\n\n"
    b"data: [DONE]\n\n"
    b"data: never finished"
)
EVENTS = [b'{"a": 1}', b"no space", b"two\n lines", "café 🎉".encode(), b"[DONE]"]


def feed(pieces: list[bytes]) -> list[bytes]:
    stream = EventStream()
    return [event for piece in pieces for event in stream.feed(piece)]


def test_whole() -> None:
    assert feed([STREAM]) == EVENTS


def test_split_at_every_byte() -> None:
    for cut in range(len(STREAM) + 1):
        assert feed([STREAM[:cut], STREAM[cut:]]) == EVENTS, cut


def test_split_at_every_two_bytes_around_line_ends() -> None:
    text = b"data: a\r\n\r\ndata: b\n\r\ndata: c\r\r"
    for first, second in itertools.combinations(range(len(text) + 1), 2):
        assert feed([text[:first], text[first:second], text[second:]]) == [b"a", b"b", b"c"], (first, second)


def test_byte_by_byte() -> None:
    assert feed([bytes([byte]) for byte in STREAM]) == EVENTS


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 60, b"data: xxxxxxxxxx\n"])
def test_an_endless_event_is_refused(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    stream = EventStream()
    assert stream.feed(piece) == []
    with pytest.raises(EventTooLong, match="100 bytes"):
        stream.feed(piece * 6)
