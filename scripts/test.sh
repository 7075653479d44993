#!/usr/bin/env bash
# Runs the C++ tests with CTest, then the Python tests with pytest. CTest's summary is held back and
# shown after pytest's, so that both are the last lines. Exit code 1 if either failed.
# Arguments go to pytest.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT" || exit 1

PYTHON="$(find_python)" || exit 1
export_run_environment "$PYTHON"
mkdir -p build/logs

ctest --test-dir build/dev --output-on-failure --no-tests=error --parallel "$JOBS" \
  >build/logs/ctest.log 2>&1
CTEST_STATUS=$?
# Passed tests are one line each in the log; here only what went wrong is of interest.
if ((CTEST_STATUS != 0)); then
  grep -vE '^ *[0-9]+/[0-9]+ Test +#.* Passed |^ +Start +[0-9]+:' build/logs/ctest.log
fi

FOLDERS=()
for folder in tests/scripts tests/launcher tests/python tests/multiproc tests/multihost tests/gpu; do
  [[ -d "$folder" ]] && FOLDERS+=("$folder")
done
timeout --kill-after=30 2400 "$PYTHON" -m pytest "${FOLDERS[@]}" "$@"
PYTEST_STATUS=$?
((PYTEST_STATUS != 124)) || echo "pytest was stopped after 2400 s"

echo
echo "C++ tests (build/logs/ctest.log):"
grep -E '^[0-9]+% tests passed|^Total Test time|^No tests were found' build/logs/ctest.log ||
  tail -5 build/logs/ctest.log
echo "ctest exit code $CTEST_STATUS, pytest exit code $PYTEST_STATUS (summary above)"
((CTEST_STATUS == 0 && PYTEST_STATUS == 0))
