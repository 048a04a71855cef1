"""cpuinfer against llama.cpp, side by side: same file, same threads, in turn, medians and ratios.

    python scripts/bench_peers.py MODEL.gguf --peer PEER_PYTHON [-t 2] [-r 5] [--tests pp512,tg128,tg32@4096,tg32x8] [--json OUT]

PEER_PYTHON is the interpreter of a virtual environment that has llama-cpp-python, built for this CPU:

    CMAKE_ARGS="-DGGML_NATIVE=ON" pip install llama-cpp-python --no-binary llama-cpp-python

A test is ppN (read N tokens) or tgN (generate N), @D after D tokens, xB for B sequences at once. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

TEST = re.compile(r"(pp|tg)(\d+)(?:@(\d+))?(?:x(\d+))?$")


def ours(python: str, model: str, threads: int, test: tuple[str, int, int, int]) -> float:
    kind, count, depth, batch = test
    command = [python, "-m", "cpuinfer", "bench", model, "-t", str(threads), "-r", "1", "-d", str(depth), "-b", str(batch), "--json"]
    command += ["-p", str(count), "-n", "0"] if kind == "pp" else ["-p", "0", "-n", str(count)]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)[0]["tokens_per_second"]


def theirs(python: str, model: str, threads: int, test: tuple[str, int, int, int]) -> float:
    command = [python, str(Path(__file__).with_name("peer_llama.py")), model, str(threads), test[0], *map(str, test[1:])]
    return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--peer", required=True, help="Python with llama-cpp-python")
    parser.add_argument("--python", default=sys.executable, help="Python with cpuinfer")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-r", "--repetitions", type=int, default=5)
    parser.add_argument("--tests", default="pp512,tg128")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    results = []
    for name in a.tests.split(","):
        match = TEST.match(name)
        if not match:
            parser.error(f"{name} is not a test such as pp512, tg128@4096 or tg32x8")
        test = (match[1], int(match[2]), int(match[3] or 0), int(match[4] or 1))
        pairs = [(ours(a.python, a.model, a.threads, test), theirs(a.peer, a.model, a.threads, test)) for _ in range(a.repetitions)]
        mine, other = (statistics.median(side) for side in zip(*pairs))
        results.append({"model": Path(a.model).name, "test": name, "threads": a.threads, "cpuinfer": mine, "llama.cpp": other, "ratio": mine / other, "pairs": pairs})
        print(f"{Path(a.model).name:28} {name:12} {mine:9.1f} {other:9.1f}  {mine / other:5.2f}x", flush=True)
    if a.json:
        a.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
