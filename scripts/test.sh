#!/usr/bin/env bash
# Runs the C++ tests with CTest, then the Python tests with pytest. Tables of steps and of the slowest
# checks follow, then how all of them ended. Nothing here ends a run that a busy machine makes long.
# Arguments go to pytest, such as --deep or --slice 3/16; with --deep the C++ tests take all cases, too.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$ROOT" || exit 1

PYTHON="$(find_python)" || exit 1
export_run_environment "$PYTHON"
REPORTS="$ROOT/build/reports"
mkdir -p build/logs
rm -rf "$REPORTS" "$DEV_TREE/reports"
mkdir -p "$REPORTS"

[[ " $* " != *" --deep "* ]] || export TEST_DEEP=1

cpp_tests() {
  local status=0
  ctest --test-dir "$DEV_TREE" --output-on-failure --no-tests=error --parallel "$((JOBS + 1))" \
    >build/logs/ctest.log 2>&1 || status=$?
  # Passed tests are lines in the log; here only what went wrong is of interest.
  if ((status != 0)); then
    grep -vE '^ *[0-9]+/[0-9]+ Test +#.* Passed |^ +Start +[0-9]+:|\[ +(OK|RUN) ' build/logs/ctest.log
  fi
  return "$status"
}

# Two pytests share the cores: most tests start jobs and wait. Each takes about half of the time, so
# that both end together (the reports in build/reports have the seconds).
# shellcheck disable=SC2034  # Passed on by name.
SECOND=(tests/multiproc/test_{checks,paths,starts,kills,small_memory,soak,examples,run,containers}.py)
FIRST=(tests/scripts tests/gpu tests/launcher tests/python tests/multihost)
for file in tests/multiproc/test_*.py; do
  [[ " ${SECOND[*]} " == *" $file "* ]] || FIRST+=("$file")
done

python_tests() { # python_tests NAME ARRAY [OPTION...], an array of paths
  local name="$1" status=0
  local -n paths="$2"
  shift 2
  "$PYTHON" -m pytest "${paths[@]}" --report "$REPORTS/$name.jsonl" -o cache_dir=".pytest_cache/$name" \
    "$@" >"build/logs/$name.log" 2>&1 || status=$?
  # No test was left by the options: that is fine where another part has some.
  if ((status == 5)); then
    status=0
  else
    : >"$REPORTS/$name.ran"
  fi
  cat "build/logs/$name.log"
  return "$status"
}

python_tests_at_once() {
  local status=0
  python_tests python_first FIRST "$@" &
  python_tests python_second SECOND "$@" || status=$?
  wait "$!" || status=$?
  return "$status"
}

step "C++ tests" cpp_tests
step "Python tests, two at once" python_tests_at_once "$@"
compgen -G "$REPORTS/*.ran" >/dev/null || STEPS_FAILED+=("no Python test was selected")

print_steps "Steps of the tests:"
echo
echo "C++ tests (build/logs/ctest.log):"
grep -E '^[0-9]+% tests passed|^Total Test time|^No tests were found' build/logs/ctest.log ||
  tail -5 build/logs/ctest.log
((${#STEPS_FAILED[@]} == 0)) || echo "failed: ${STEPS_FAILED[*]}"
shopt -s nullglob
"$PYTHON" scripts/test_report.py "$DEV_TREE"/reports/*.jsonl "$REPORTS"/*.jsonl ||
  STEPS_FAILED+=("a test")
((${#STEPS_FAILED[@]} == 0))
