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

# Most tests start jobs and wait for them, so there are more workers than cores. Slow files come first,
# so that no worker is left with one at the end. A run has the turn of its commit; a deep run has all.
python_tests() {
  local turn=()
  [[ -n "${TEST_DEEP:-}" ]] || turn=(--turn "$(git rev-list --count HEAD 2>/dev/null || echo 0)")
  "$PYTHON" -m pytest -q --numprocesses "$((JOBS + 1))" --no-loadscope-reorder \
    tests/multiproc/test_{checks,starts,paths,examples,kills}.py tests/launcher tests/multiproc \
    tests/multihost tests/python tests/scripts tests/fuzz tests/gpu \
    --report "$REPORTS/python.jsonl" "${turn[@]}" "$@"
}

step "C++ tests" cpp_tests
step "Python tests" python_tests "$@"

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
