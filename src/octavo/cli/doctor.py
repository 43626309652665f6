"""`octavo doctor`: what this machine offers, what Octavo makes of it, and what to do about what is wrong."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from octavo import __version__
from octavo.cli.options import Sources, add_settings
from octavo.config import EngineConfig, ServerConfig
from octavo.formats.progress_bar import rounded_size

if TYPE_CHECKING:
    from octavo.models.defaults import SamplingDefaults

_NATIVE_LEVELS = ("avx512_bf16", "avx512", "avx2", "generic")
_LIBRARIES = ("numpy", "tokenizers", "msgspec", "jinja2", "uvicorn", "httptools", "uvloop", "huggingface_hub")
_LEAST_FREE_DISK_BYTES = 1 << 30


@dataclass(slots=True)
class Finding:
    """One line of the report. `problems` say what is wrong and what to do; `fatal`: the model can't be served."""

    topic: str
    text: str
    problems: list[str] = field(default_factory=list)
    fatal: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "The exit status is 1 if the model can't be served here, else 0, also if there are lesser problems."
    add_settings(parser, EngineConfig)
    add_settings(parser, ServerConfig, only=("host", "port", "log_level"))


def run(arguments: argparse.Namespace) -> int:
    sources = Sources.read(arguments, os.environ)
    found = list(examine(sources.build(EngineConfig), sources.build(ServerConfig)))
    for finding in found:
        print(f"{finding.topic:<10}{finding.text}")
    problems = [problem for finding in found for problem in finding.problems]
    print()
    for problem in problems:
        print(f"! {problem}")
    if not problems:
        print("No problem found.")
    return 1 if any(finding.fatal for finding in found) else 0


def examine(engine: EngineConfig, server: ServerConfig) -> Iterator[Finding]:
    """All findings, in the order of the report. A check that fails itself is a finding, too."""
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("octavo", versions),
        ("cpu", cpu),
        ("kernels", lambda: kernels(engine.isa)),
        ("threads", lambda: threads(engine.threads)),
        ("memory", memory),
        ("cache", cache),
        ("model", lambda: model(engine)),
        ("port", lambda: port(server)),
    ]
    for topic, check in checks:
        try:
            yield check()
        except Exception as error:
            yield Finding(topic, "could not be examined", [f"{topic}: {type(error).__name__}: {error}"], fatal=True)


def versions() -> Finding:
    """Octavo, Python, system and the libraries it runs on."""
    installed, missing = [], []
    for name in _LIBRARIES:
        try:
            installed.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    text = f"{__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}"
    problems = [f"{name} is not installed; run `{sys.executable} -m pip install {name}`." for name in missing]
    return Finding("octavo", f"{text}\n{'':<10}{', '.join(installed)}", problems, bool(missing))


def cpu(root: Path = Path("/")) -> Finding:
    """The processor's name and the features that decide speed."""
    fields: dict[str, str] = {}
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", "").split())
    wanted = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8")
    have = [flag for flag in wanted if flag in flags]
    name = fields.get("model name") or platform.machine()
    return Finding("cpu", f"{name}, {os.cpu_count()} logical CPUs; {', '.join(have) or 'no vector features known'}")


def kernels(forced: str | None) -> Finding:
    """Which compiled instruction set levels run here, and which one will."""
    if find_spec("octavo._native") is None:
        advice = "the compiled kernels are missing; install a C++ compiler and run `pip install .` again."
        return Finding("kernels", "missing", [advice], fatal=True)
    levels = list(importlib.import_module("octavo._native").supported_levels())
    best = next(level for level in _NATIVE_LEVELS if level in levels)
    if forced is not None and forced not in levels:
        advice = f"isa is {forced}; this CPU runs {', '.join(levels)}. Leave the setting out to get {best}."
        return Finding("kernels", f"{forced} is not to be had", [advice], fatal=True)
    problems = []
    if best == "generic":
        problems.append("this CPU has no AVX2, so only the slow generic kernels run; use a newer CPU for real loads.")
    return Finding("kernels", f"level {forced or best} (available: {', '.join(levels)})", problems)


def threads(wanted: int | None, root: Path = Path("/"), affinity: set[int] | None = None) -> Finding:
    """How many kernel threads, and what decided it."""
    from octavo.runtime.cgroup import cpu_quota, default_threads, most_threads, physical_cores

    cpus = os.sched_getaffinity(0) if affinity is None else affinity
    default, reason = default_threads(root, cpus)
    quota = cpu_quota(root)
    facts = (
        f"affinity {len(cpus)}, quota {'none' if quota is None else f'{quota:g}'}, "
        f"physical cores {physical_cores(cpus, root)}"
    )
    problems = []
    if wanted is not None and wanted > default:
        problems.append(
            f"threads is {wanted}; more than {default} ({reason}) wait for each other, so leave the setting out."
        )
    if quota is not None and quota < 1:
        problems.append(
            f"the CPU quota is {quota:g} of a core, so the kernels are paused in every period; allow at least 1 CPU."
        )
    chosen = f"{default}, from {reason}" if wanted is None else f"{wanted}, as set"
    return Finding("threads", f"{chosen} ({facts})", problems, fatal=(wanted or 0) > most_threads())


def memory(root: Path = Path("/")) -> Finding:
    """How much memory may be taken and which limit says so."""
    from octavo.runtime.cgroup import memory_room

    room = memory_room(root)
    versions = "v2" if (root / "sys/fs/cgroup/cgroup.controllers").exists() else "v1"
    if not (root / "sys/fs/cgroup").is_dir():
        versions = "none"
    return Finding("memory", f"{rounded_size(room.bytes)} may be taken: {room.source} (control groups: {versions})")


def cache() -> Finding:
    """The folder for downloads: where, how much room, what is in it."""
    from octavo.formats.catalogue import CATALOGUE, cache_folder

    folder = cache_folder()
    here = [entry.name for entry in CATALOGUE if entry.cached_path(folder).is_file()]
    above = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(above).free
    problems = []
    if not os.access(above, os.W_OK):
        problems.append(f"{above} cannot be written to; name another folder with OCTAVO_CACHE.")
    elif free < _LEAST_FREE_DISK_BYTES:
        problems.append(
            f"{above} has {rounded_size(free)} left; free some space, or name another folder with OCTAVO_CACHE."
        )
    if find_spec("pip") is None:
        problems.append(f"this Python has no pip, which `octavo pull` needs; run `{sys.executable} -m ensurepip`.")
    return Finding("cache", f"{folder}, {rounded_size(free)} free; holds {', '.join(here) or 'nothing yet'}", problems)


def model(config: EngineConfig) -> Finding:
    """What `octavo serve` would choose for the model, if it is here; nothing is downloaded."""
    from octavo.formats.catalogue import cache_folder, find
    from octavo.formats.resolve import comes_from_hub, resolve
    from octavo.models.load import load_model
    from octavo.runtime.build import kv_groups_for, sizes_for

    entry = find(config.model, "gguf")
    if entry is not None and not entry.cached_path(cache_folder()).is_file():
        advice = f"run `octavo pull {entry.name}` once; `octavo serve` does it by itself otherwise."
        return Finding("model", f"{config.model} is not here yet ({rounded_size(entry.file_bytes)} to fetch)", [advice])
    if comes_from_hub(config.model):
        return Finding("model", f"{config.model} is no path here and not in the catalogue; it would come from the hub")
    try:
        loaded = load_model(resolve(config.model))
        sizes = sizes_for(loaded, config, kv_groups_for(loaded.spec, config))
    except ValueError as error:
        return Finding("model", f"{config.model} cannot be served", [str(error)], fatal=True)
    return Finding("model", f"{config.model}: {sizes.reason}; sampling defaults: {_sampling(loaded.defaults, config)}")


def _sampling(defaults: SamplingDefaults, config: EngineConfig) -> str:
    if config.generation_config == "none" or not defaults.given:
        return "OpenAI's"
    return ", ".join(f"{name} {value:g}" for name, value in defaults.given.items()) + f", from {defaults.source}"


def port(config: ServerConfig) -> Finding:
    """Whether the server's port can be had."""
    where = f"{config.host} port {config.port}"
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((config.host, config.port))
        except OSError as error:
            advice = f"{where} cannot be listened on ({error.strerror}); choose another with --port or --host."
            return Finding("port", "taken", [advice])
    return Finding("port", f"{where} is free")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
