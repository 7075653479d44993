#!/usr/bin/env bash
# What takes too long for every change, and is not in make test. All parts: make deep.
# Usage: deep.sh                all parts; goes on after one that fails, exit code 1 if one did
#        deep.sh PART...        these parts
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$ROOT" || exit 1

PARTS=(tests thread address locks binding model fuzz soak)

run_part() {
  case "$1" in
    thread) TEST_DEEP=1 scripts/sanitize.sh thread ;;
    address) TEST_DEEP=1 scripts/sanitize.sh address ;;
    locks) scripts/sanitize.sh lock-analysis ;; # It reads each file by itself.
    binding) scripts/sanitize_binding.sh ;;
    model) scripts/model.sh ;;
    fuzz) FUZZ_EXECUTIONS=100000000 scripts/fuzz.sh ;;
    soak) SOAK_MINUTES="${SOAK_MINUTES:-10}" scripts/soak.sh ;;
    tests) scripts/test.sh --deep ;; # Every case, number of ranks, backend and layout.
    *) die "got '$1', expected one of: ${PARTS[*]}" ;;
  esac
}

(($#)) || set -- "${PARTS[@]}"
for part in "$@"; do step "$part" run_part "$part" || true; done
print_steps "Parts of make deep:"
((${#STEPS_FAILED[@]} == 0)) || die "failed: ${STEPS_FAILED[*]}"
