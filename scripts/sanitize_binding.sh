#!/usr/bin/env bash
# Builds everything, the binding to torch included, with AddressSanitizer and
# UndefinedBehaviorSanitizer and runs Python tests with it, alone and on two ranks. Not a part of
# ci, which has the core's tests under sanitizers: this compiles all of it once more.
# Arguments go to pytest, in place of the tests.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT"

PYTHON="$(find_python)"
TREE="$ROOT/build/binding"
CXX="${CXX:-c++}"
cmake -G Ninja -S . -B "$TREE" "-DCMAKE_CXX_COMPILER=$CXX" "-DPython_EXECUTABLE=$PYTHON" \
  -DMYDIST_SANITIZE=address -DMYDIST_BUILD_TESTS=OFF
cmake --build "$TREE" --target mydist_package --parallel "$JOBS"
# A package of its own: the one in python/ stays as it is.
rm -rf "$TREE/python"
cp -r python "$TREE/python"
rm -rf "$TREE"/python/mydist/lib "$TREE"/python/mydist/_C.*.so
cmake --install "$TREE" --prefix "$TREE/python/mydist" >/dev/null

export_run_environment "$PYTHON"
export PYTHONPATH="$TREE/python"
# Python is not instrumented: the runtimes have to be there before it loads what is.
LD_PRELOAD="$("$CXX" -print-file-name=libasan.so):$("$CXX" -print-file-name=libubsan.so)"
export LD_PRELOAD
# Python and torch leave memory behind when they end. Its own allocator would hide what we break.
export ASAN_OPTIONS="detect_leaks=0:detect_stack_use_after_return=1:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
export PYTHONMALLOC=malloc

LOADED="$("$PYTHON" -c 'import torch; from mydist import _C; print(_C.__file__)')"
[[ "$LOADED" == "$TREE"/* ]] || die "Python loads $LOADED, not what was built here."
if (($# == 0)); then
  # Freed memory stays resident for a while here, and a step takes another time.
  set -- tests/python tests/multiproc/test_checks.py \
    -k "not (np1 or np3 or np4 or np5 or memory_does_not_grow or wakes_nobody)"
fi
exec "$PYTHON" -m pytest "$@"
