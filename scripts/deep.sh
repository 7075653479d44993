#!/usr/bin/env bash
# What takes too long for every change. All parts: make deep.
# Usage: deep.sh                all parts; goes on after one that fails, exit code 1 if one did
#        deep.sh PART...        these parts
#        deep.sh rotating       one part, chosen by the number of commits, for at most 8 minutes
#        deep.sh affordable     exit code 0 if a run of CI has the time for the above: the compiler's
#                               cache had most of what was built
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$ROOT" || exit 1

PARTS=(thread address binding model jobs programs hosts)
SLICE_LIMIT_S=480

pytest_deep() { # pytest_deep ARGUMENTS... with what is marked deep
  local python
  python="$(find_python)"
  export_run_environment "$python"
  "$python" -m pytest --deep -q "$@"
}

run_part() {
  case "$1" in
    thread) scripts/sanitize.sh thread ;;
    address) scripts/sanitize.sh address ;;
    binding) scripts/sanitize_binding.sh ;;
    model) scripts/model.sh ;;
    # Every check with every case, on every number of ranks, backend and layout.
    jobs) pytest_deep -n 2 --dist loadgroup tests/multiproc/test_checks.py ;;
    # Kills, soak, paths, containers, benchmarks.
    programs) pytest_deep tests/multiproc --ignore tests/multiproc/test_checks.py ;;
    hosts) pytest_deep tests/scripts tests/launcher tests/python tests/multihost tests/gpu ;;
    *) die "got '$1', expected one of: ${PARTS[*]}" ;;
  esac
}

rotating() {
  local part="${PARTS[$(($(git rev-list --count HEAD) % ${#PARTS[@]}))]}" status=0
  echo "This change's part of make deep: $part"
  timeout --kill-after=30 "$SLICE_LIMIT_S" "$0" "$part" || status=$?
  ((status == 124 || status == 137)) || return "$status"
  echo "$part was ended after $SLICE_LIMIT_S s; what it had run until then has passed."
}

# Cold, the build takes most of the time that CI has.
affordable() {
  local hits misses
  command -v ccache >/dev/null || return 1
  hits="$(ccache --print-stats | awk '/^(direct|preprocessed)_cache_hit/ { sum += $2 } END { print sum + 0 }')"
  misses="$(ccache --print-stats | awk '/^cache_miss/ { print $2 + 0 }')"
  ((hits > 4 * misses))
}

case "${1:-}" in
  affordable) affordable ;;
  rotating) rotating ;;
  *)
    (($#)) || set -- "${PARTS[@]}"
    for part in "$@"; do step "$part" run_part "$part" || true; done
    print_steps "Parts of make deep:"
    ((${#STEPS_FAILED[@]} == 0)) || die "failed: ${STEPS_FAILED[*]}"
    ;;
esac
