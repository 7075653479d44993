#!/usr/bin/env bash
# Builds the fuzz targets of tests/fuzz with clang, libFuzzer, AddressSanitizer and
# UndefinedBehaviorSanitizer and runs each of them for FUZZ_SECONDS (60), as many at a time as there
# are cores. An input that breaks a promise stays in build/fuzz/found; exit code 1.
# Usage: fuzz.sh [run|keep|list]
# run: ONLY="report trace" runs these. FUZZ_EXECUTIONS: again and again, until all targets together
#     have run so often.
# keep: adds to tests/fuzz/corpus what the runs so far have reached besides.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT"

CXX="${MYDIST_CLANG:-clang++-14}"
command -v "$CXX" >/dev/null || die "$CXX is missing. Run: scripts/setup.sh fuzz"
cmake -G Ninja -S . -B build/fuzz "-DCMAKE_CXX_COMPILER=$CXX" -DMYDIST_SANITIZE=fuzz \
  -DMYDIST_SANITIZE_LOOPS=OFF -DMYDIST_BUILD_TORCH=OFF -DMYDIST_BUILD_TESTS=OFF \
  -DMYDIST_WITH_MPI=OFF -DMYDIST_WITH_GLOO=OFF -DMYDIST_WITH_CUDA=OFF \
  -DMYDIST_WITH_PS=OFF >/dev/null
cmake --build build/fuzz --target fuzz --parallel "$JOBS"

# The parsers in Python as users import them: the launcher is below the package.
rm -rf build/fuzz/python
mkdir -p build/fuzz/python/mydist
for entry in python/mydist/*; do
  [[ "$entry" == */launcher ]] || ln -s "$ROOT/$entry" build/fuzz/python/mydist/
done
ln -s "$ROOT/launcher" build/fuzz/python/mydist/launcher

PYTHON="$FUZZ_PYTHON/bin/python"
[[ -x "$PYTHON" ]] || echo "No $FUZZ_PYTHON: the parsers in Python are left out (scripts/setup.sh fuzz)."
exec "$(find_python)" -m scripts.fuzz "${1:-run}" --jobs "$JOBS" --seconds "${FUZZ_SECONDS:-60}" \
  --executions "${FUZZ_EXECUTIONS:-0}" --python "$PYTHON" ${ONLY:+--only "$ONLY"}
