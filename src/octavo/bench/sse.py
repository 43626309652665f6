"""Server-sent events, cut from a byte stream that may be split anywhere (WHATWG HTML, section 9.2)."""

from __future__ import annotations

MAX_EVENT_BYTES = 16 << 20


class EventTooLong(ValueError):
    """An event that does not end within MAX_EVENT_BYTES."""


class EventStream:
    """`feed(bytes)` returns the data of the events that are now complete; several data lines are joined by newlines.

    Lines end in LF, CR LF or CR. Comments and fields other than `data` are skipped. One event is bounded in size.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk:
            chunk = chunk[1:] if chunk[:1] == b"\n" else chunk
            self._after_cr = False
        if b"\r" in chunk:
            self._after_cr = chunk[-1:] == b"\r"
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        events = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                self._data, self._size = [], 0
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
                self._size += len(line)
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLong(f"an event of the stream is longer than {MAX_EVENT_BYTES} bytes.")
        return events
