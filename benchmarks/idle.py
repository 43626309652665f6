"""What a server takes while nobody asks for anything: processor time, wake-ups and memory of both processes.

    python benchmarks/idle.py [--seconds 10] [--limit-cpu 0.5] [--limit-mib 200] [--json FILE] [-- FLAGS OF SERVE]

One request is answered first. Memory is what is resident beyond weights (the size of the model's file) and page pool;
pages that both processes share, such as the interpreter's code, count half in each (PSS).
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

from servers import Server, octavo, write_result

from octavo.config import EngineConfig
from octavo.formats.resolve import resolve

MIB = 1 << 20
SETTLE_S = 3.0


@dataclass(frozen=True, slots=True)
class Usage:
    """cpu_s and wakeups (voluntary context switches) since start, over all threads; pss_mib now."""

    cpu_s: float
    wakeups: int
    pss_mib: float

    @classmethod
    def of(cls, pid: int) -> Usage:
        cpu_ns = wakeups = 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            cpu_ns += int((task / "schedstat").read_text().split()[0])
            wakeups += int(_field("voluntary_ctxt_switches", (task / "status").read_text()))
        return cls(cpu_ns / 1e9, wakeups, _field("Pss", Path(f"/proc/{pid}/smaps_rollup").read_text()) / 1024)


def _field(name: str, text: str) -> float:
    match = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    assert match is not None, name
    return float(match[1])


def pool_mib(engine: int, metrics: str) -> float:
    """Resident part of the page pool: of the mapping that is as large as all pages."""
    pages, tokens, token_bytes = (
        int(re.search(rf'{name}="(\d+)"', metrics)[1])  # type: ignore[index]
        for name in ("num_gpu_blocks", "block_size", "kv_bytes_per_token")
    )
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{engine}/smaps").read_text(), flags=re.MULTILINE)[1:]
    largest = max(mappings, key=lambda mapping: _field("Size", mapping))
    assert _field("Size", largest) * 1024 >= pages * tokens * token_bytes, "the pool's mapping is not to be found"
    return _field("Rss", largest) / 1024


def ask(server: Server) -> None:
    body = b'{"prompt": "Hello", "max_tokens": 8}'
    headers = {"content-type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{server.url}/v1/completions", body, headers)).read()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--model", default=EngineConfig().model)
    parser.add_argument("--limit-cpu", type=float, help="exit with status 1 above this percentage of a core")
    parser.add_argument("--limit-mib", type=float, help="exit with status 1 above this memory")
    parser.add_argument("--json", type=Path)
    parser.add_argument("flags", nargs="*")
    arguments = parser.parse_args()
    weights_mib = resolve(arguments.model).path.stat().st_size / MIB
    with octavo("--model", arguments.model, *arguments.flags) as server:
        ask(server)
        time.sleep(SETTLE_S)
        pids = {"front": server.pid, "engine": server.child_pid()}
        before = {name: Usage.of(pid) for name, pid in pids.items()}
        time.sleep(arguments.seconds)
        after = {name: Usage.of(pid) for name, pid in pids.items()}
        with urllib.request.urlopen(f"{server.url}/metrics") as metrics:
            pool = pool_mib(pids["engine"], metrics.read().decode())
    cpu = {name: (after[name].cpu_s - before[name].cpu_s) / arguments.seconds * 100 for name in pids}
    for name in pids:
        wakeups = (after[name].wakeups - before[name].wakeups) / arguments.seconds
        print(f"{name:<7} {cpu[name]:.3f} % of a core, {wakeups:.1f} wake-ups a second, {after[name].pss_mib:.1f} MiB")
    beyond = sum(usage.pss_mib for usage in after.values()) - weights_mib - pool
    print(f"both: {sum(cpu.values()):.3f} % of a core; {beyond:.1f} MiB beyond weights and pool ({pool:.1f} resident)")
    content = {"cpu_percent": cpu, "beyond_mib": beyond, "pool_mib": pool, "weights_mib": weights_mib}
    write_result(arguments.json, content | {name: asdict(usage) for name, usage in after.items()})
    over_cpu = arguments.limit_cpu is not None and sum(cpu.values()) > arguments.limit_cpu
    over_memory = arguments.limit_mib is not None and beyond > arguments.limit_mib
    return int(over_cpu or over_memory)


if __name__ == "__main__":
    sys.exit(main())
