#!/bin/sh
# Installs cpuinfer into .venv, fetches the default model and answers the question given as arguments.
set -e
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check -e .
[ $# -gt 0 ] || set -- "What is the capital of Japan?"
# The likeliest answer, and an end to it: the default model is a small demonstration.
exec .venv/bin/cpuinfer run --temp 0 -n 256 "$@"
