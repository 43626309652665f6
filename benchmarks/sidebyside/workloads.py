"""W1-W5: what is sent, how, and what it asks of a server."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from peers.engine import Need

from octavo.bench.completion import BenchRequest
from octavo.bench.dataset import salted
from octavo.bench.loadgen import Load
from octavo.bench.workload import Workload
from octavo.text.tokenizer import Tokenizer

# A salt is the seed of random texts, and the digits before ShareGPT's: a multiple keeps runs' random seeds apart.
_SEED_STEP = 1000
_WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Work:
    """One workload.

    requests: how many, of which lengths; `Texts` makes them. in_flight None: no cap (an open loop at `rate` a second).
    """

    name: str
    title: str
    requests: Workload
    need: Need
    in_flight: int | None
    rate: float = math.inf

    def load(self, seed: int = 0) -> Load:
        """Greedy, exactly the asked number of tokens. seed: of the arrivals of an open loop."""
        sampling = {"temperature": 0, "ignore_eos": True}
        return Load("completions", "", sampling, rate=self.rate, concurrency=self.in_flight, seed=seed)

    def at_rate(self, rate: float) -> Work:
        return replace(self, rate=rate)

    def with_count(self, count: int) -> Work:
        return replace(self, requests=replace(self.requests, count=count))


class Texts:
    """The requests of runs, with text that no run with another salt has. ShareGPT is read and tokenised once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[Workload, list[BenchRequest]] = {}

    def build(self, work: Work, salt: int) -> list[BenchRequest]:
        """The measured requests of one run."""
        if work.requests.dataset == "random":
            return replace(work.requests, seed=salt * _SEED_STEP).build(self._tokenizer)[0]
        if work.requests not in self._known:
            self._known[work.requests] = work.requests.build(self._tokenizer)[0]
        return salted(self._known[work.requests], salt)

    def warm_up(self, work: Work, salt: int) -> list[BenchRequest]:
        """A few short ones of other text, as many as the run has at once: for what a server allocates or compiles."""
        count = min(work.in_flight or work.need.in_flight, 32)
        short = Workload(count, dataset="random", input_len=32, output_len=_WARM_UP_TOKENS, seed=salt * _SEED_STEP + 1)
        return short.build(self._tokenizer)[0]


_SHAREGPT_TOKENS = 1024  # 512 of a prompt, its salt, 256 of an answer, and room

_ONLINE = Work(
    "W3", "online, Poisson arrivals", Workload(60), Need(32, _SHAREGPT_TOKENS), None
)  # 32 slots for engines that must have a number

WORKLOADS = {
    work.name: work
    for work in (
        Work(
            "W1",
            "one stream: 128-token prompts, 128 greedy tokens, one after another",
            Workload(8, dataset="random", input_len=128, output_len=128),
            Need(1, 512),
            1,
        ),
        Work("W2-32", "saturated: ShareGPT, 32 in flight", Workload(128), Need(32, _SHAREGPT_TOKENS), 32),
        Work("W2-64", "saturated: ShareGPT, 64 in flight", Workload(128), Need(64, _SHAREGPT_TOKENS), 64),
        replace(_ONLINE, name="W3-4", title="online: ShareGPT, Poisson, 4 requests a second", rate=4.0),
        replace(_ONLINE, name="W3-8", title="online: ShareGPT, Poisson, 8 requests a second", rate=8.0),
        replace(_ONLINE, name="W3-goodput", title="highest rate with TTFT p99 < 1 s and TPOT p99 < 80 ms"),
        Work(
            "W4",
            "prefill: 2,048-token prompts, 1 token, one after another",
            Workload(5, dataset="random", input_len=2048, output_len=1),
            Need(1, 2304, prefill_only=True),
            1,
        ),
        Work(
            "W5",
            "shared prefix: 1,024 common and 32 own tokens, 32 output tokens, 16 in flight",
            Workload(64, dataset="random", input_len=1056, output_len=32, prefix_len=1024),
            Need(16, 1280, shared_prefix=True),
            16,
        ),
    )
}

# What a first look needs; all engines of a run get the same.
QUICK_COUNTS = {"W1": 4, "W2-32": 64, "W2-64": 128, "W3-4": 40, "W3-8": 60, "W3-goodput": 60, "W4": 3, "W5": 32}

GROUPS = {"W2": ("W2-32", "W2-64"), "W3": ("W3-4", "W3-8")}


def select(names: str, quick: bool) -> list[Work]:
    """Workloads from `W1,W2-32,W3`; W2 and W3 stand for both of theirs. Raises ValueError."""
    chosen: list[Work] = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        for member in GROUPS.get(name, (name,)):
            if member not in WORKLOADS:
                raise ValueError(f"--workloads has {name!r}; known are {', '.join([*GROUPS, *WORKLOADS])}.")
            work = WORKLOADS[member]
            chosen.append(work.with_count(QUICK_COUNTS[member]) if quick else work)
    if not chosen:
        raise ValueError(f"--workloads names none; known are {', '.join([*GROUPS, *WORKLOADS])}.")
    return chosen
