"""docs/performance.md, and the table on the terminal, from a run's results."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidebyside.plots import bars
from sidebyside.results import OURS, Results

UNKNOWN = "-"


@dataclass(frozen=True)
class Row:
    """One figure of one workload. floor and goal: how many times better than the best peer, or than `against`."""

    title: str
    workload: str
    metric: str
    unit: str
    higher: bool = True
    floor: float | None = None
    goal: float | None = None
    against: str | None = None


ROWS = (
    Row("W1 decode", "W1", "decode_tokens_per_s", "tokens/s", True, 1.2, 1.5),
    Row("W1 TTFT p50", "W1", "ttft_p50_ms", "ms", False, 1.0, 1.4),
    Row("W2, 32 in flight", "W2-32", "output_tokens_per_s", "tokens/s", True, 1.5, 2.0),
    Row("W2, 64 in flight", "W2-64", "output_tokens_per_s", "tokens/s", True, 1.5, 2.0),
    Row("W3, 4 req/s: TTFT p50", "W3-4", "ttft_p50_ms", "ms", False),
    Row("W3, 4 req/s: TTFT p99", "W3-4", "ttft_p99_ms", "ms", False, 1 / 0.6, 1 / 0.4, "openvino"),
    Row("W3, 4 req/s: TPOT p50", "W3-4", "tpot_p50_ms", "ms", False, 1 / 0.6, 1 / 0.4, "openvino"),
    Row("W3, 4 req/s: TPOT p99", "W3-4", "tpot_p99_ms", "ms", False),
    Row("W3, 8 req/s: TTFT p50", "W3-8", "ttft_p50_ms", "ms", False),
    Row("W3, 8 req/s: TTFT p99", "W3-8", "ttft_p99_ms", "ms", False),
    Row("W3, 8 req/s: TPOT p50", "W3-8", "tpot_p50_ms", "ms", False),
    Row("W3, 8 req/s: TPOT p99", "W3-8", "tpot_p99_ms", "ms", False),
    Row("W3, 8 req/s: output", "W3-8", "output_tokens_per_s", "tokens/s", True),
    Row("W3 goodput", "W3-goodput", "rate", "req/s", True, 1.6, 2.2),
    Row("W4 prefill", "W4", "prefill_tokens_per_s", "tokens/s", True, 1.2, 1.4),
    Row("W5 wall", "W5", "duration_s", "s", False, 1.5, 3.0),
    Row("memory under W2 (32)", "W2-32", "peak_mib", "MiB", False),
)
_START_ROWS = (("ready after start", "ready_s", "s"), ("memory idle", "idle_mib", "MiB"))


def table(results: Results) -> str:
    """All figures and the ratios as a Markdown table."""
    engines = results.engines
    if not engines:
        return "no measurements yet."
    heads = ["", *(results.label(engine) for engine in engines), "Octavo to the best peer", "floor", "goal"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for row in ROWS:
        values = [results.median(engine, row.workload, row.metric) for engine in engines]
        if any(value is not None for value in values):
            cells = [number(value) for value in values]
            lines.append(_line([f"{row.title}, {row.unit}", *cells, *_verdict(results, row)]))
    for title, metric, unit in _START_ROWS:
        cells = [number(results.start_median(engine, metric)) for engine in engines]
        lines.append(_line([f"{title}, {unit}", *cells, "", "", ""]))
    scored = results.content.get("perplexity")
    if scored is not None:
        losses = [_loss(scored, engine) for engine in engines]
        lines.append(_line([f"perplexity against f32 ({scored['f32']:.3f})", *losses, "", "", "+0.3 %"]))
    sizes = [number(results.content["engines"][engine].get("environment_mb")) for engine in engines]
    lines.append(_line(["installed environment, MB", *sizes, "", "", ""]))
    return "\n".join(lines)


def own_table(results: Results) -> str:
    """What is measured against a bound and not against a peer."""
    lines = [_line(["Octavo alone", "measured", "floor", "goal"]), _line(["---"] * 4)]
    offline = results.median(OURS, "W2-32-offline", "output_tokens_per_s")
    served = results.ratio_within(OURS, "W2-32", "W2-32-offline", "output_tokens_per_s")
    outside = results.median(OURS, "W2-32-offline", "outside_share")
    ready = results.start_median(OURS, "ready_s")
    if outside is not None:
        lines.append(_line(["wall time inside `plan.run` on W2", f"{1 - outside:.1%}", "95 %", "98 %"]))
    if offline is not None:
        lines.append(_line(["W2 offline, tokens/s", number(offline), "", ""]))
    if served is not None:
        lines.append(_line(["HTTP streaming against offline, W2", f"{served:.1%}", "93 %", "97 %"]))
    if ready is not None:
        lines.append(_line(["ready after start, s", number(ready), "1.5", "0.7"]))
    idle, weights = results.start_median(OURS, "idle_mib"), results.content["engines"].get(OURS, {}).get("weights_mib")
    if idle is not None and weights is not None:
        beyond = number(idle - weights)
        lines.append(_line(["resident memory idle, beyond weights, MiB", beyond, "200", "120"]))
    return "\n".join(lines)


def write_page(results: Results, path: Path) -> None:
    """The page, and its plots in a folder beside it that is named like it."""
    folder = path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    plots = []
    for row in ROWS:
        values = [(results.label(name), results.median(name, row.workload, row.metric)) for name in results.engines]
        shown = [(label, value) for label, value in values if value is not None]
        if row.floor is not None and len(shown) > 1:
            file = folder / f"{row.workload}-{row.metric}.svg".lower()
            _write(file, bars(f"{row.title} ({row.unit}, {'more' if row.higher else 'less'} is better)", shown))
            plots.append(f"![{row.title}]({folder.name}/{file.name})")
    _write(path, _page(results, plots))


def _page(results: Results, plots: list[str]) -> str:
    content = results.content
    parts = [
        "# Performance",
        f"Generated by `benchmarks/side_by_side.py` from one run on {content['date']}; do not edit.",
        _warnings(results),
        _intro(content),
        "## Octavo and its peers",
        "Medians over the rounds. A ratio is the median of the rounds' own ratios, and above 1 Octavo is better; the "
        "best peer is the one that Octavo's ratio is smallest against." + _factors(content),
        table(results),
        _accuracy(content),
        own_table(results),
        "\n\n".join(plots),
        "## How it was run",
        _workloads(content),
        _engines(results),
        _goodput(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _intro(content: dict[str, Any]) -> str:
    machine = content["machine"]
    commands = "\n".join(content["commands"])
    quick = ", few requests (`--quick`)" if content["quick"] else ""
    return (
        f"Machine: {machine['cpu']}, {machine['cores']} cores in use, {', '.join(machine['extensions'])}; last-level "
        f"cache {machine['last_level_cache']}, {machine['memory_gib']} GiB of memory; {machine['system']}. Model: "
        f"`{content['model']}`. Rounds: {content['rounds']}{quick}. One engine at a time; Octavo's load generator "
        "drives each over HTTP on the same cores; every measurement sends new text. Absolute "
        "figures move from day to day and from machine to machine: compare ratios.\n\n"
        f"```sh\n{commands}\n```"
    )


def _warnings(results: Results) -> str:
    content = results.content
    lines = []
    if not content["complete"]:
        reason = "it was interrupted" if content.get("interrupted") else "something failed, or it is still running"
        lines.append(f"> **Incomplete run**: {reason}; what is here was measured.")
    lines += [f"> {name}: {_one_line(reason)}" for name, reason in content["failed"].items()]
    return "\n>\n".join(lines)


def _one_line(reason: str) -> str:
    """A sentence as it is; of a server's last words, the last."""
    words = reason.strip().splitlines()
    return words[0] if len(words) == 1 else f"{words[0]} ... {words[-1].strip()}"


def _factors(content: dict[str, Any]) -> str:
    slow = [f"{entry['label']} by {entry['factor']:g}" for entry in content["engines"].values() if entry["factor"] != 1]
    return f" Ratios are divided for builds that are slower than they could be: {', '.join(slow)}." if slow else ""


def _accuracy(content: dict[str, Any]) -> str:
    if "perplexity" not in content:
        return ""
    return (
        f"Perplexity is of {content['perplexity']['tokens']:,} tokens of ShareGPT text, against the shipped file's "
        "weights in float32. Octavo is scored as it serves; peers by their weights alone, computed in "
        "float32: what their own rounding of activations costs comes on top."
    )


def _workloads(content: dict[str, Any]) -> str:
    lines = [
        f"- **{name}**: {work['title']}; {work['requests']} requests" for name, work in content["workloads"].items()
    ]
    return "\n".join(lines)


def _engines(results: Results) -> str:
    lines = []
    for name in results.engines:
        entry = results.content["engines"][name]
        versions = ", ".join(f"{key} {value}" for key, value in entry["versions"].items())
        start = next(one for one in results.content["starts"] if one["engine"] == name)
        settings = [f"{key}={_short(value)}" for key, value in start["environment"].items()]
        command = " ".join([*settings, _short(start["command"])])
        lines.append(f"- **{entry['label']}** ({versions}): {entry['settings']}.\n  `{command}`")
    return "\n".join(lines)


def _short(command: str) -> str:
    """On one line, without this machine's folders."""
    words = " ".join(command.split()).split(" ")
    return " ".join(os.path.basename(word) if word.startswith("/") else word for word in words)


def _goodput(results: Results) -> str:
    lines = []
    for entry in results.content["measurements"]:
        if entry["workload"] == "W3-goodput":
            probes = ", ".join(
                f"{probe['rate']:g}: {number(probe['ttft_p99_ms'])} / {number(probe['tpot_p99_ms'])}"
                for probe in sorted(entry["figures"]["probes"], key=lambda probe: probe["rate"])
            )
            lines.append(f"- {results.label(entry['engine'])}: {probes}")
    return "Rates tried for goodput (req/s: TTFT p99 / TPOT p99, ms):\n\n" + "\n".join(lines) if lines else ""


def _verdict(results: Results, row: Row) -> list[str]:
    best = results.best_peer(row.workload, row.metric, row.higher)
    shown = "" if best is None else f"{best[1]:.2f} ({results.label(best[0])})"
    if best is not None and row.against in results.engines and row.against != best[0]:
        ratio = results.ratio(row.against, row.workload, row.metric, row.higher)
        if ratio is not None:
            shown += f"; {ratio:.2f} ({results.label(row.against)}), which floor and goal are about"
    return [shown, *("" if bound is None else f"{bound:.3g}" for bound in (row.floor, row.goal))]


def number(value: float | None) -> str:
    """A table's cell."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _loss(scored: dict[str, Any], engine: str) -> str:
    value = scored["engines"].get(engine)
    return UNKNOWN if value is None else f"{100 * (value / scored['f32'] - 1):+.2f} %"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
