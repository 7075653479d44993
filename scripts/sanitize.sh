#!/usr/bin/env bash
# Builds the core and its C++ tests with clang, a sanitizer and clang's lock analysis (a violation is
# an error), and runs the tests. Usage: sanitize.sh thread|address|lock-analysis|ci
# thread, address: all tests.
# ci: one of the two, by the parity of the number of commits: thread with the tests that have
#     threads, address with those that parse bytes, where loops over elements, a minute of the
#     compiler's time, are no matter; then lock-analysis.
# lock-analysis: only reads, without a build, each file of csrc; in ci only what the sanitizers'
#     trees leave out, which is the binding and the plugins, several files at a time.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT"

CXX="${MYDIST_CLANG:-clang++-14}"
command -v "$CXX" >/dev/null || die "$CXX is missing. Run: scripts/setup.sh check"

sanitizer_options() { # sanitizer_options thread|address
  local options=("-DMYDIST_SANITIZE=$1" -DMYDIST_BUILD_TORCH=OFF -DMYDIST_WITH_MPI=OFF)
  # Open MPI and Gloo are not instrumented, so their plugins would report false races.
  [[ "$1" == address ]] || options+=(-DMYDIST_WITH_GLOO=OFF)
  printf '%s\n' "${options[@]}"
}

sanitize() { # sanitize thread|address TARGET [LABEL [OPTION...]], options of CMake
  local kind="$1" target="$2" label="${3:-}" tree="build/$1" options run=() selection=()
  mapfile -t options < <(sanitizer_options "$kind")
  options+=("${@:4}")
  cmake -G Ninja -S . -B "$tree" "-DCMAKE_CXX_COMPILER=$CXX" -DMYDIST_THREAD_SAFETY=ON "${options[@]}"
  cmake --build "$tree" --target "$target" --parallel "$JOBS"
  export_run_environment "$(find_python)"
  export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:${TSAN_OPTIONS:-}"
  export ASAN_OPTIONS="detect_leaks=1:detect_stack_use_after_return=1:${ASAN_OPTIONS:-}"
  export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
  # ThreadSanitizer needs the memory layout that address randomisation may spoil.
  setarch "$(uname -m)" -R true 2>/dev/null && run=(setarch "$(uname -m)" -R)
  [[ -z "$label" ]] || selection=(-L "^$label\$")
  mkdir -p build/logs
  "${run[@]}" ctest --test-dir "$tree" --output-on-failure --no-tests=error --parallel "$((JOBS + 1))" \
    "${selection[@]}" | tee "build/logs/ctest-$kind.log" |
    grep -vE '^ *[0-9]+/[0-9]+ Test +#.* Passed |^ +Start +[0-9]+:'
}

lock_analysis() { # lock_analysis ON|OFF FOLDER...; ON: several files at a time
  local unity="$1" tree="build/lock-analysis" python
  shift
  python="$(find_python)"
  has_module "$python" torch || die "$python has no torch. Run: make setup"
  cmake -G Ninja -S . -B "$tree" "-DCMAKE_CXX_COMPILER=$CXX" -DMYDIST_THREAD_SAFETY=ON \
    -DMYDIST_BUILD_TESTS=OFF "-DMYDIST_UNITY=$unity" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
    "-DPython_EXECUTABLE=$python"
  "$python" scripts/check_syntax.py "$tree" "$@"
  echo "Lock analysis: no violation."
}

case "${1:-}" in
  thread | address) sanitize "$1" all "" -DMYDIST_SANITIZE_LOOPS=ON ;;
  lock-analysis) lock_analysis OFF csrc ;;
  ci)
    if (($(git rev-list --count HEAD) % 2)); then
      sanitize thread mydist_tests_threads threads
    else
      sanitize address mydist_tests_bytes bytes -DMYDIST_SANITIZE_LOOPS=OFF
    fi
    lock_analysis ON csrc/torch csrc/transport/mpi csrc/transport/gloo csrc/gpu
    ;;
  *) die "got '${1:-}', expected one of: thread, address, lock-analysis, ci" ;;
esac
