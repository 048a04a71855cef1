"""How many threads: the quotas of all control groups above a process count, versions 1 and 2, rounded down."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpuinfer.engine import memory
from cpuinfer.kernels import cgroups, threads


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """write(groups, mounts, files): a /proc/self and cgroup folders as a system would show them. mounts: (root, place, kind, options)."""

    def write(groups: str, mounts: list[tuple[str, str, str, str]], files: dict[str, str]) -> None:
        proc = tmp_path / "proc"
        proc.mkdir()
        (proc / "cgroup").write_text(groups)
        lines = [f"30 25 0:26 {root} {tmp_path / place} rw,nosuid shared:9 - {kind} cgroup rw,{options}" for root, place, kind, options in mounts]
        (proc / "mountinfo").write_text("\n".join(["22 1 8:1 / / rw - ext4 /dev/sda1 rw", *lines]) + "\n")
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        monkeypatch.setattr(cgroups, "PROC", proc)

    return write


V2 = [("/", "cg", "cgroup2", "nsdelegate")]


def test_the_smallest_quota_of_the_group_and_all_above_it_counts(tree) -> None:
    tree("0::/a/b\n", V2, {"cg/a/b/cpu.max": "400000 100000", "cg/a/cpu.max": "150000 100000", "cg/x/cpu.max": "10000 100000"})
    assert cgroups.cpu_quota() == 1.5


@pytest.mark.parametrize("quota, count", [("150000 100000", 1), ("299000 100000", 2), ("50000 100000", 1), ("max 100000", 4), ("nonsense", 4), ("0 0", 4)])
def test_a_quota_is_rounded_down_to_at_least_one(tree, monkeypatch, quota, count) -> None:
    tree("0::/a\n", V2, {"cg/a/cpu.max": quota})
    monkeypatch.setattr(threads, "_cpus", lambda: {0, 1, 2, 3})
    assert threads.usable_cpus() == count


def test_a_container_sees_its_own_part_of_the_tree_as_the_root(tree) -> None:
    tree("0::/\n", V2, {"cg/cpu.max": "200000 100000"})
    assert cgroups.cpu_quota() == 2


def test_version_1_with_a_named_mount_and_a_parents_quota(tree) -> None:
    mounts = [("/", "cpu,cpuacct", "cgroup", "cpu,cpuacct"), ("/", "mem", "cgroup", "memory")]
    files = {"cpu,cpuacct/job/cpu.cfs_quota_us": "250000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"}
    files |= {"cpu,cpuacct/job/step/cpu.cfs_quota_us": "-1", "cpu,cpuacct/job/step/cpu.cfs_period_us": "100000"}
    tree("4:cpu,cpuacct:/job/step\n3:memory:/job\n1:name=systemd:/\n", mounts, files)
    assert cgroups.cpu_quota() == 2.5


def test_version_1_in_a_container_whose_mount_starts_at_its_group(tree) -> None:
    mounts = [("/docker/1f", "cpu", "cgroup", "cpu,cpuacct")]
    tree("4:cpu,cpuacct:/docker/1f/in\n", mounts, {"cpu/in/cpu.cfs_quota_us": "100000", "cpu/in/cpu.cfs_period_us": "50000"})
    assert cgroups.cpu_quota() == 2


def test_both_versions_side_by_side(tree) -> None:
    mounts = [("/", "cpu", "cgroup", "cpu"), ("/", "unified", "cgroup2", "rw")]
    files = {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000", "unified/b/memory.max": "1000", "unified/b/memory.current": "400"}
    tree("4:cpu:/a\n0::/b\n", mounts, files)
    assert cgroups.cpu_quota() == 3 and cgroups.memory_left() == 600


def test_memory_is_what_the_tightest_group_leaves(tree, monkeypatch) -> None:
    files = {"cg/a/memory.max": "max", "cg/a/memory.current": "7", "cg/memory.max": "5000", "cg/memory.current": "4500"}
    tree("0::/a\n", V2, files)
    monkeypatch.setattr(memory, "_system", lambda: 10**9)
    assert memory.available_memory() == 500


def test_without_groups_there_is_no_limit(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(cgroups, "PROC", Path(tmp_path / "none"))
    assert cgroups.cpu_quota() == float("inf") and cgroups.memory_left() is None
