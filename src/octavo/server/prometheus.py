"""Counters, gauges and histograms in the Prometheus text format.

Our own hundred lines rather than a client library: an observation costs a bisect (there is one for each token), and the
front starts 50 ms sooner. Label values are few and chosen by the server, never by clients.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

#: Seconds, from a fifth of a millisecond to ten minutes.
LATENCY_BUCKETS_S = (
    *(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
#: Token counts, 1-2-5.
SIZE_BUCKETS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))

Labels = tuple[tuple[str, str], ...]


class Counter:
    """A total that only grows; with a `label`, one for each of its values, of which some are known beforehand."""

    kind = "counter"

    def __init__(self, name: str, help: str, label: str = "", values: Sequence[str] = ()) -> None:
        self.name = name
        self.help = help
        self._label = label
        self._values = dict.fromkeys(values if label else ("",), 0.0)

    def add(self, amount: float = 1.0, value: str = "") -> None:
        """Grow by `amount` >= 0; `value` is the label's, when the counter has one."""
        self._values[value] = self._values.get(value, 0.0) + amount

    def samples(self) -> Iterable[tuple[str, Labels, float]]:
        for value, total in self._values.items():
            yield "", ((self._label, value),) if self._label else (), total


class Gauge:
    """A value read when it is asked for; None leaves it out. `labels` are fixed, and may be asked for too."""

    kind = "gauge"

    def __init__(
        self, name: str, help: str, read: Callable[[], float | None], labels: Callable[[], Labels] = lambda: ()
    ) -> None:
        self.name = name
        self.help = help
        self._read = read
        self._labels = labels

    def samples(self) -> Iterable[tuple[str, Labels, float]]:
        value = self._read()
        if value is not None:
            yield "", self._labels(), value


class Histogram:
    """Observations counted in buckets with fixed upper bounds (inclusive)."""

    kind = "histogram"

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help = help
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add(self, counts: Sequence[int], total: float) -> None:
        """Observations made elsewhere: how many in each bucket (the last: above all bounds), and their sum."""
        self._counts = [own + more for own, more in zip(self._counts, counts, strict=True)]
        self._sum += total

    def samples(self) -> Iterable[tuple[str, Labels, float]]:
        total = 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            total += count
            yield "_bucket", (("le", _number(bound)),), total
        total += self._counts[-1]
        yield "_bucket", (("le", "+Inf"),), total
        yield "_sum", (), self._sum
        yield "_count", (), total


class Renamed:
    """A metric shown once more under another name."""

    def __init__(self, name: str, metric: Histogram) -> None:
        self.name = name
        self.help = f"The same as {metric.name}, under its older name."
        self.kind = metric.kind
        self.samples = metric.samples


Metric = Counter | Gauge | Histogram | Renamed


def render(metrics: Iterable[Metric], prefix: str, labels: Labels) -> bytes:
    """The page; every name gets `prefix`, every sample `labels`."""
    lines: list[str] = []
    for metric in metrics:
        name = prefix + metric.name
        lines.append(f"# HELP {name} {metric.help}")
        lines.append(f"# TYPE {name} {metric.kind}")
        for suffix, own, value in metric.samples():
            text = ",".join(f'{key}="{_escape(given)}"' for key, given in (*labels, *own))
            lines.append(f"{name}{suffix}{{{text}}} {_number(value)}")
    return ("\n".join(lines) + "\n").encode()


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
