"""`octavo doctor` on machines that are made up here."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from octavo.cli import doctor
from octavo.cli import main as cli
from octavo.config import EngineConfig, ServerConfig
from octavo.formats.errors import ModelNotFoundError
from octavo.formats.resolve import resolve
from octavo.runtime.cgroup import most_threads


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_memory_names_the_limit_of_a_v2_group(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "proc/meminfo": "MemAvailable: 20971520 kB\n",
            "proc/self/cgroup": "0::/box\n",
            "sys/fs/cgroup/cgroup.controllers": "memory cpu\n",
            "sys/fs/cgroup/box/memory.max": str(1 << 30),
            "sys/fs/cgroup/box/memory.current": str(1 << 28),
        },
    )
    found = doctor.memory(root)
    assert found.text == "768.0MiB may be taken: memory.max of the control group (control groups: v2)"


def test_memory_names_the_limit_of_a_v1_group(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "proc/meminfo": "MemAvailable: 20971520 kB\n",
            "proc/self/cgroup": "4:memory:/box\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": str(1 << 29),
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "0",
        },
    )
    assert doctor.memory(root).text.startswith("512.0MiB may be taken: memory.limit_in_bytes")
    assert doctor.memory(root).text.endswith("v1)")


def test_threads_say_what_decided(tmp_path: Path) -> None:
    root = machine(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"})
    found = doctor.threads(None, root, set(range(8)))
    assert found.text == "2, from CPU quota of 2.5 (affinity 8, quota 2.5, physical cores 8)"
    assert found.problems == []


def test_too_many_threads_are_a_problem(tmp_path: Path) -> None:
    found = doctor.threads(999, tmp_path, {0, 1})
    assert found.text.startswith("999, as set")
    assert "threads is 999; more than 2" in found.problems[0]
    assert found.fatal == (most_threads() < 999)
    assert not doctor.threads(3, tmp_path, {0, 1}).fatal


def test_half_a_cpu_is_a_problem(tmp_path: Path) -> None:
    root = machine(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"})
    assert "quota is 0.5 of a core" in doctor.threads(None, root, {0, 1}).problems[0]


def test_cpu_features(tmp_path: Path) -> None:
    root = machine(tmp_path, {"proc/cpuinfo": "model name : Some CPU\nflags : fpu avx2 avx512_vnni\nflags : other\n"})
    assert "Some CPU" in doctor.cpu(root).text
    assert doctor.cpu(root).text.endswith("avx2, avx512_vnni")
    assert "no vector features" in doctor.cpu(tmp_path / "nothing").text


def test_a_level_this_cpu_lacks_is_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Native:
        @staticmethod
        def supported_levels() -> list[str]:
            return ["generic"]

    monkeypatch.setattr(doctor.importlib, "import_module", lambda name: Native)
    found = doctor.kernels("avx2")
    assert found.fatal
    assert "this CPU runs generic" in found.problems[0]
    assert "no AVX2" in doctor.kernels(None).problems[0]


def test_a_model_that_is_not_here_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    found = doctor.model(EngineConfig())
    assert not found.fatal
    assert "octavo pull smollm2-135m-instruct" in found.problems[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["nope", "./nope", "nope.gguf", "a/b/c/d"])
def test_a_name_that_serve_would_refuse_is_fatal(name: str) -> None:
    found = doctor.model(EngineConfig(model=name))
    assert found.fatal
    with pytest.raises(ModelNotFoundError) as refused:
        resolve(name)
    assert found.problems == [str(refused.value)]
    assert not doctor.model(EngineConfig(model="some-org/some-model")).fatal


def test_a_broken_model_is_fatal(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"<html>")
    found = doctor.model(EngineConfig(model=str(broken)))
    assert found.fatal
    assert "broken.gguf" in found.problems[0]


def test_a_taken_port_is_a_problem() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = doctor.port(ServerConfig(port=taken.getsockname()[1]))
    assert "cannot be listened on" in found.problems[0]
    assert doctor.port(ServerConfig(port=0)).problems == []


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> doctor.Finding:
        raise PermissionError("no /proc here")

    monkeypatch.setattr(doctor, "cpu", broken)
    findings = {finding.topic: finding for finding in doctor.examine(EngineConfig(), ServerConfig())}
    assert findings["cpu"].fatal
    assert "no /proc here" in findings["cpu"].problems[0]
    assert len(findings) == 8


def test_the_whole_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    assert cli.main(["doctor", "--port", "0"]) == 0
    topics = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line and line[0] != " "]
    assert topics == ["octavo", "cpu", "kernels", "threads", "memory", "cache", "model", "port", "!"]
