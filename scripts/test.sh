#!/bin/sh
# Installs cpuinfer with its development tools into .venv and runs the tests. Arguments go to pytest.
set -e
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
exec .venv/bin/python -m pytest -n 2 --dist loadfile "$@"
