"""Limits are read from control groups v1 and v2, over all parents, never from the host alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.runtime.cgroup import cpu_quota, default_threads, memory_room, physical_cores

GIB = 1 << 30


def tree(root: Path, files: dict[str, str]) -> Path:
    files.setdefault("proc/meminfo", f"MemTotal: {64 << 20} kB\nMemAvailable: {32 << 20} kB\n")
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_without_groups_the_machine_decides(tmp_path: Path) -> None:
    room = memory_room(tree(tmp_path, {}))
    assert room.bytes == 32 * GIB
    assert "machine" in room.source
    assert cpu_quota(tmp_path) is None


def test_v2_takes_the_least_over_all_parents(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b",
            "sys/fs/cgroup/a/b/memory.max": "max",
            "sys/fs/cgroup/a/b/memory.current": str(GIB),
            "sys/fs/cgroup/a/memory.max": str(4 * GIB),
            "sys/fs/cgroup/a/memory.current": str(3 * GIB),
            "sys/fs/cgroup/a/b/cpu.max": "max 100000",
            "sys/fs/cgroup/a/cpu.max": "250000 100000",
        },
    )
    assert memory_room(root).bytes == GIB
    assert "memory.max" in memory_room(root).source
    assert cpu_quota(root) == 2.5


def test_v2_high_counts_and_page_cache_does_not(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a",
            "sys/fs/cgroup/a/memory.max": str(8 * GIB),
            "sys/fs/cgroup/a/memory.high": str(2 * GIB),
            "sys/fs/cgroup/a/memory.current": str(GIB),
            "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {GIB // 4}\nactive_file {GIB // 4}\n",
        },
    )
    room = memory_room(root)
    assert room.bytes == 2 * GIB - GIB // 2
    assert "memory.high" in room.source


def test_v2_inside_a_container_whose_path_is_the_hosts(tmp_path: Path) -> None:
    for path in ("/docker/1234", "/../other"):
        root = tree(
            tmp_path / path.strip("/.").replace("/", "_"),
            {
                "proc/self/cgroup": f"0::{path}",
                "sys/fs/cgroup/memory.max": str(GIB),
                "sys/fs/cgroup/memory.current": "0",
                "sys/fs/cgroup/cpu.max": "50000 100000",
            },
        )
        assert memory_room(root).bytes == GIB
        assert cpu_quota(root) == 0.5


def test_v1_limits_and_shared_controllers(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/job/1\n4:cpu,cpuacct:/job/1\n1:name=systemd:/x",
            "sys/fs/cgroup/memory/job/1/memory.limit_in_bytes": str(9223372036854771712),
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(3 * GIB),
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(2 * GIB),
            "sys/fs/cgroup/memory/job/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
            "sys/fs/cgroup/cpu,cpuacct/job/1/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu,cpuacct/job/1/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "300000",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
        },
    )
    assert memory_room(root).bytes == 2 * GIB
    assert cpu_quota(root) == 3.0


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/memory.max": str(GIB),
            "sys/fs/cgroup/memory.current": str(2 * GIB),
        },
    )
    assert memory_room(root).bytes == 0


@pytest.mark.parametrize(
    ("quota", "affinity", "threads", "reason"),
    [
        (None, {0, 1, 2, 3, 4, 5, 6, 7}, 4, "physical cores"),  # two hardware threads a core
        ("250000 100000", {0, 1, 2, 3, 4, 5, 6, 7}, 2, "CPU quota of 2.5"),
        ("50000 100000", {0, 1, 2, 3}, 1, "CPU quota of 0.5"),
        (None, {0, 2}, 2, "physical cores"),
        (None, {0, 1}, 1, "physical cores"),  # both are one core
    ],
)
def test_threads(tmp_path: Path, quota: str | None, affinity: set[int], threads: int, reason: str) -> None:
    files = {"proc/self/cgroup": "0::/"}
    for cpu in range(8):
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"] = "0"
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/core_id"] = str(cpu // 2)
    if quota is not None:
        files["sys/fs/cgroup/cpu.max"] = quota
    assert default_threads(tree(tmp_path, files), affinity) == (threads, reason)


def test_cores_without_topology_are_counted_as_cpus(tmp_path: Path) -> None:
    assert physical_cores({0, 1, 5}, tree(tmp_path, {})) == 3


def test_this_machine_can_be_read() -> None:
    assert memory_room().bytes > 0
    assert default_threads()[0] >= 1
