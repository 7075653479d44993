#!/usr/bin/env bash
# Builds the core and its C++ tests with clang and a sanitizer and runs them; "lock-analysis"
# compiles only, with clang's thread-safety analysis as errors, and the binding to torch as well.
# Usage: sanitize.sh thread|address|lock-analysis
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT"

CXX="${MYDIST_CLANG:-clang++-14}"
command -v "$CXX" >/dev/null || die "$CXX is missing. Run: scripts/setup.sh check"
KIND="${1:-}"
OPTIONS=("-DCMAKE_CXX_COMPILER=$CXX")
case "$KIND" in
  thread) # Open MPI and Gloo are not instrumented, so their plugins would report false races.
    OPTIONS+=(-DMYDIST_SANITIZE=thread -DMYDIST_BUILD_TORCH=OFF -DMYDIST_WITH_MPI=OFF
      -DMYDIST_WITH_GLOO=OFF) ;;
  address) OPTIONS+=(-DMYDIST_SANITIZE=address -DMYDIST_BUILD_TORCH=OFF -DMYDIST_WITH_MPI=OFF) ;;
  lock-analysis)
    PYTHON="$(find_python)"
    has_module "$PYTHON" torch || die "$PYTHON has no torch. Run: make setup"
    OPTIONS+=(-DMYDIST_THREAD_SAFETY=ON -DMYDIST_BUILD_TESTS=OFF
      -DCMAKE_COMPILE_WARNING_AS_ERROR=ON "-DPython_EXECUTABLE=$PYTHON") ;;
  *) die "got '$KIND', expected one of: thread, address, lock-analysis" ;;
esac

TREE="build/$KIND"
cmake -G Ninja -S . -B "$TREE" "${OPTIONS[@]}"
cmake --build "$TREE" --parallel "$JOBS"
if [[ "$KIND" == lock-analysis ]]; then
  echo "Lock analysis: no violation."
  exit 0
fi

export_run_environment "$(find_python)"
export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:${TSAN_OPTIONS:-}"
export ASAN_OPTIONS="detect_leaks=1:detect_stack_use_after_return=1:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
# ThreadSanitizer needs the memory layout that address randomisation may spoil.
RUN=()
setarch "$(uname -m)" -R true 2>/dev/null && RUN=(setarch "$(uname -m)" -R)
mkdir -p build/logs
"${RUN[@]}" ctest --test-dir "$TREE" --output-on-failure --no-tests=error --parallel "$JOBS" |
  tee "build/logs/ctest-$KIND.log" | grep -vE '^ *[0-9]+/[0-9]+ Test +#.* Passed |^ +Start +[0-9]+:'
