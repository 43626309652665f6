"""The JSON of a run: facts, then one entry for each measurement, written after every one so that none is lost."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.bench.report import write_json

OURS = "octavo"


@dataclass
class Results:
    """`content` is what the file holds; `complete` is False until the whole plan has been measured."""

    path: Path | None
    content: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def new(cls, path: Path | None, facts: dict[str, Any]) -> Results:
        return cls(path, {"complete": False, **facts, "engines": {}, "failed": {}, "starts": [], "measurements": []})

    @classmethod
    def read(cls, path: Path) -> Results:
        """A file that an earlier run wrote. Raises ValueError."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} can't be read as results: {error}.") from error
        if not isinstance(content, dict) or "measurements" not in content:
            raise ValueError(f"{path} holds no results of a side-by-side run.")
        return cls(path, content)

    def go_on(self, facts: dict[str, Any]) -> None:
        """Note another command of this run, which may add workloads. Raises ValueError for another model."""
        if facts["model"] != self.content["model"]:
            raise ValueError(f"{self.path} is a run of {self.content['model']}; --model is {facts['model']}.")
        self.content["commands"] += [one for one in facts["commands"] if one not in self.content["commands"]]
        self.content["workloads"] |= facts["workloads"]
        self.content["rounds"] = max(self.content["rounds"], facts["rounds"])

    def has(self, engine: str, workload: str, turn: int) -> bool:
        """True if that was measured."""
        return any(
            (entry["engine"], entry["workload"], entry["round"]) == (engine, workload, turn)
            for entry in self.content["measurements"]
        )

    def add(self, kind: str, entry: dict[str, Any]) -> None:
        """Append to `measurements` or `starts`, and save."""
        self.content[kind].append(entry)
        self.save()

    def save(self) -> None:
        if self.path is not None:
            write_json(self.path, self.content)

    # reading

    @property
    def engines(self) -> list[str]:
        """Those with at least one measurement, in the order in which they were asked for."""
        measured = {entry["engine"] for entry in self.content["measurements"]}
        return [name for name in self.content["engines"] if name in measured]

    def label(self, engine: str) -> str:
        return str(self.content["engines"][engine]["label"])

    def by_round(self, engine: str, workload: str, metric: str) -> dict[int, float]:
        """The metric of each round in which it was measured."""
        return {
            entry["round"]: entry["figures"][metric]
            for entry in self.content["measurements"]
            if entry["engine"] == engine and entry["workload"] == workload and entry["figures"].get(metric) is not None
        }

    def median(self, engine: str, workload: str, metric: str) -> float | None:
        values = self.by_round(engine, workload, metric).values()
        return statistics.median(values) if values else None

    def start_median(self, engine: str, metric: str) -> float | None:
        """Of `ready_s` or `idle_mib` over the engine's starts; over those for 32 in flight if there are any."""
        starts = [entry for entry in self.content["starts"] if entry["engine"] == engine]
        values = [entry[metric] for entry in starts if "W2-32" in entry["workloads"]]
        values = values or [entry[metric] for entry in starts]
        return statistics.median(values) if values else None

    def ratio(self, peer: str, workload: str, metric: str, higher: bool) -> float | None:
        """How many times better Octavo is than `peer`: median over rounds of the round's own ratio.

        Divided by the peer's factor, so a slow build of it does not flatter Octavo. None if no round has both.
        """
        ours, theirs = self.by_round(OURS, workload, metric), self.by_round(peer, workload, metric)
        pairs = [(ours[turn], theirs[turn]) for turn in ours if turn in theirs and ours[turn] > 0 and theirs[turn] > 0]
        if not pairs:
            return None
        measured = statistics.median(mine / other if higher else other / mine for mine, other in pairs)
        return measured / float(self.content["engines"][peer]["factor"])

    def ratio_within(self, engine: str, workload: str, base: str, metric: str) -> float | None:
        """One engine's metric on a workload over that on `base`: median over rounds; None if no round has both."""
        values, bases = self.by_round(engine, workload, metric), self.by_round(engine, base, metric)
        ratios = [values[turn] / bases[turn] for turn in values if bases.get(turn)]
        return statistics.median(ratios) if ratios else None

    def best_peer(self, workload: str, metric: str, higher: bool) -> tuple[str, float] | None:
        """The peer that Octavo's ratio is smallest against, and that ratio."""
        ratios: Iterable[tuple[str, float | None]] = (
            (peer, self.ratio(peer, workload, metric, higher)) for peer in self.engines if peer != OURS
        )
        found = [(peer, ratio) for peer, ratio in ratios if ratio is not None]
        return min(found, key=lambda item: item[1]) if found else None
