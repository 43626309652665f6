"""The bounded queue: how many sequences may be waiting or running. What is above it is refused at once, not queued."""

from __future__ import annotations

from types import TracebackType

from octavo.server.errors import overloaded


class Admission:
    """Counts seats. A sequence has one from the moment its request is accepted until it has ended."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    def reserve(self, count: int) -> Seats:
        """Seats for all sequences of a request, or ApiError 429 and none."""
        if self.taken + count > self.limit:
            raise overloaded(
                f"The queue is full: {self.taken} sequences are waiting or running, this request has {count}, and the "
                f"limit is {self.limit} (--max-queue). Try again later."
            )
        self.taken += count
        return Seats(self, count)

    def release(self, count: int) -> None:
        self.taken -= count


class Seats:
    """Reserved seats; those not handed over to sequences are given back at the end of the `with`."""

    def __init__(self, admission: Admission, count: int) -> None:
        self._admission = admission
        self._left = count

    def hand_over(self, count: int) -> None:
        """From now on the journal releases these, one as each sequence ends."""
        self._left -= count

    def __enter__(self) -> Seats:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admission.release(self._left)
