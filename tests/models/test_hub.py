"""hf: models against a hub on the loopback interface. huggingface_hub reads HF_ENDPOINT when it is imported, so each pull runs in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cpuinfer.errors import ModelNotFound
from cpuinfer.models import hub, store

pytest.importorskip("huggingface_hub")
ROOT = Path(__file__).resolve().parent.parent.parent
COMMIT = "0123456789012345678901234567890123456789"


class Hub(BaseHTTPRequestHandler):
    """Repositories as the real hub serves them: a listing with sizes and checksums, and files by name."""

    repositories: dict[str, dict[str, bytes]] = {}
    damaged: set[str] = set()
    requests: list[str] = []

    def do_GET(self) -> None:
        self.answer(True)

    def do_HEAD(self) -> None:
        self.answer(False)

    def answer(self, with_body: bool) -> None:
        self.requests.append(self.path)
        path = self.path.split("?")[0].strip("/")
        if path.startswith("api/models/") and (files := self.repositories.get(path.removeprefix("api/models/"))) is not None:
            siblings = [{"rfilename": n, "size": len(c), "lfs": {"sha256": hashlib.sha256(c).hexdigest(), "size": len(c), "pointerSize": 100}} for n, c in files.items()]
            self.reply(200, json.dumps({"id": path[11:], "sha": COMMIT, "siblings": siblings}).encode(), with_body)
            return
        repository, _, name = path.partition(f"/resolve/{'main'}/")
        content = self.repositories.get(repository, {}).get(name)
        if content is None:
            self.reply(404, b"", with_body, {"X-Error-Code": "EntryNotFound" if repository in self.repositories else "RepoNotFound"})
            return
        sent = content[:-1] + b"!" if name in self.damaged else content
        self.reply(200, sent, with_body, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT})

    def reply(self, status: int, body: bytes, with_body: bool, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(body)), "Content-Type": "application/json"} | (headers or {})).items():
            self.send_header(key, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    Hub.repositories, Hub.damaged, Hub.requests = {}, set(), []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "hf-home"),
        "CPUINFER_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
    }.items():
        monkeypatch.setenv(name, value)
    yield Hub
    server.shutdown()
    server.server_close()


def pull(name: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-m", "cpuinfer", "pull", name], capture_output=True, text=True, env=environment, timeout=120)


def test_the_default_is_q4_k_m_and_later_needs_no_network(server) -> None:
    server.repositories = {"o/r": {"README.md": b"", "m-Q2_K.gguf": b"two", "m-Q4_K_M.gguf": b"four", "m-Q8_0.gguf": b"eight"}}
    first = pull("hf:o/r")
    assert (first.returncode, first.stderr) == (0, "")
    path = Path(first.stdout.strip())
    assert path.read_bytes() == b"four" and path.is_relative_to(store.home())
    server.requests.clear()
    assert pull("hf:o/r").stdout == first.stdout and server.requests == []
    assert store.local() == [("hf:o/r:m-Q4_K_M.gguf", path)]
    assert store.resolve("hf:o/r:m-Q4_K_M.gguf") == path
    store.remove("hf:o/r:m-Q4_K_M.gguf")
    assert store.local() == []
    assert pull("hf:o/r").returncode == 0 and path.read_bytes() == b"four"


def test_a_split_model_comes_with_all_its_parts_and_goes_with_them(server) -> None:
    parts = {f"Q8_0/big-Q8_0-{n:05d}-of-00003.gguf": f"part {n}".encode() for n in (1, 2, 3)}
    server.repositories = {"o/split": parts | {"a-Q4_0.gguf": b"other"}}
    done = pull("hf:o/split:Q8_0")
    assert (done.returncode, done.stderr) == (0, "")
    folder = store.home() / "hf" / "o" / "split"
    assert {n: (folder / n).read_bytes() for n in parts} == parts
    name = "hf:o/split:Q8_0/big-Q8_0-00001-of-00003.gguf"
    assert [n for n, _ in store.local()] == [name]
    store.remove(name)
    assert not list(folder.rglob("*.gguf"))


def test_a_damaged_file_is_refused_and_the_next_try_starts_anew(server) -> None:
    server.repositories = {"o/r": {"m-Q4_K_M.gguf": b"content"}}
    server.damaged = {"m-Q4_K_M.gguf"}
    result = pull("hf:o/r")
    assert result.returncode == 1 and "arrived damaged" in result.stderr and result.stderr.count("\n") == 1
    assert store.local() == []
    server.damaged = set()
    assert pull("hf:o/r").returncode == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hf:o/r:Q5_K_M", "the repository has: m-Q8_0.gguf"),
        ("hf:o/empty", "the repository has: none"),
        ("hf:o/missing", "check the name and the network"),
        ("hf:o/hostile", "the repository has: none"),
        ("hf:o/torn", "lacks m-00002-of-00002.gguf"),
        ("hf:o/many", "claims to have 99999 parts"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(server, name, words) -> None:
    server.repositories = {
        "o/r": {"m-Q8_0.gguf": b"x"},
        "o/empty": {"README.md": b"x"},
        "o/hostile": {"../../evil.gguf": b"x", "a/../../evil.gguf": b"x", "/evil.gguf": b"x", "a\\evil.gguf": b"x"},
        "o/torn": {"m-00001-of-00002.gguf": b"x"},
        "o/many": {"m-00001-of-99999.gguf": b"x"},
    }
    result = pull(name)
    assert result.returncode == 1 and words in result.stderr and result.stderr.count("\n") == 1, result.stderr


def test_without_a_network_the_failure_is_one_line(server, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = pull("hf:o/r")
    assert result.returncode == 1 and "cannot fetch hf:o/r" in result.stderr and result.stderr.count("\n") == 1


def test_without_the_library_its_name_is_given(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelNotFound, match=r"pip install 'cpuinfer\[hf\]'"):
        hub.pull("o/r", tmp_path)


def test_a_quant_means_the_model_not_its_companions() -> None:
    names = ["imatrix-Q8_0.gguf", "m-IQ2_XS.gguf", "m-Q8_0.gguf", "mmproj-Q8_0.gguf"]
    assert hub.choose(names, "q8_0") == "m-Q8_0.gguf"
    assert hub.choose(names, "mmproj-Q8_0.gguf") == "mmproj-Q8_0.gguf"
    assert hub.choose(names, "") == "m-IQ2_XS.gguf"
    assert hub.choose(["m-Q4_K_S.gguf", "m-Q4_K.gguf"], "Q4_K") == "m-Q4_K.gguf", "a quant is a whole word"
    assert hub.choose(names, "Q6_K") is None and hub.choose([], "") is None
