#!/usr/bin/env bash
# Measures every target of benchmarks/targets.py and prints target, measured, verdict.
# Arguments go to `python -m benchmarks`; without any, everything is measured (4 to 20 minutes).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT"

PYTHON="$(find_python)"
export_run_environment "$PYTHON"
cmake -S . -B "$DEV_TREE" -DMYDIST_BUILD_BENCHMARKS=ON >/dev/null
cmake --build "$DEV_TREE" --target bench_allreduce --parallel "$JOBS"
exec "$PYTHON" -m benchmarks --core "$DEV_TREE/benchmarks/bench_allreduce" "$@"
