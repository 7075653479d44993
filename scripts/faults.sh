#!/usr/bin/env bash
# Measures how soon each fault is reported on each plane and checks what the reports say
# (docs/reliability.md). Arguments go to `python -m faults`, such as --only sigkill --repeats 5.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT"

PYTHON="$(find_python)"
export_run_environment "$PYTHON"
export PYTHONPATH="$ROOT/tests${PYTHONPATH:+:$PYTHONPATH}"
exec "$PYTHON" -m faults "$@"
