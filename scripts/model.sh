#!/usr/bin/env bash
# Checks the Promela model of the frozen schedule (docs/decisions/0008): the protocol has to hold in
# every configuration, and every mutant of it has to fail. Takes minutes and up to 4 GB of memory.
# Usage: model.sh [mutants]   mutants: only these, which takes seconds.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT"

command -v spin >/dev/null || die "spin is missing. Run: scripts/setup.sh model"
MODEL="$ROOT/docs/models/frozen_schedule.pml"
TREE="$(mktemp -d)"
trap 'rm -rf "$TREE"' EXIT
cd "$TREE"
FAILED=()

check() { # check EXPECTED_ERRORS TITLE DEFINITION...
  local expected="$1" title="$2" errors
  shift 2
  spin -a "${@/#/-D}" "$MODEL" >/dev/null
  "${CC:-cc}" -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=4096 -o pan pan.c
  # The verifier ends with 0 whatever it finds.
  ./pan -m100000 >pan.log
  errors="$(sed -n 's/.*errors: //p' pan.log)"
  if [[ "$errors" == "$expected" ]] && ! grep -qE 'max search depth|out of memory|MEMLIM' pan.log; then
    echo "ok      $title ($(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' pan.log) states)"
  else
    echo "FAILED  $title: errors '$errors', expected $expected"
    FAILED+=("$title")
  fi
}

holds() { check 0 "$@"; }
fails() { check 1 "mutant: $1" "${@:2}"; }

fails "executes before all votes are read" MUTANT=1
fails "takes READY back" MUTANT=2
fails "never loses patience" MUTANT=3 STUBBORN=1 BREAKS=0
fails "counts announcements from before the freeze" MUTANT=4
fails "breaks on thaw with a vote undecided" MUTANT=5
fails "freezes before all have thawed" MUTANT=6 SET0=3 SET1=6 STEPS=3
fails "asks no other host" MUTANT=7 AWAY=4
fails "looks at its host only" MUTANT=8 AWAY=4
fails "speaks for its host too soon" MUTANT=9 AWAY=4
if [[ "${1:-}" != mutants ]]; then
  holds "one set, any deviation" BREAKS=1
  holds "one set, a program in another order" BREAKS=0 STUBBORN=1
  holds "one set, an impatient rank" BREAKS=0 WANTS=1
  holds "one set, a crash" BREAKS=0 CRASHES=1 FREEZES=1
  holds "sets that share a rank, any deviation" SET0=3 SET1=6
  holds "sets that share a rank, a crash" SET0=3 SET1=6 BREAKS=0 CRASHES=1 FREEZES=1
  holds "sets that share two ranks, any deviation" SET0=7 SET1=6
  holds "two hosts, any deviation of a leader" AWAY=4 DEVIANT=0 FREEZES=1
  holds "two hosts, any deviation of another rank" AWAY=4 DEVIANT=1 FREEZES=1
  holds "two hosts, any deviation of a rank alone on its host" AWAY=4 DEVIANT=2 FREEZES=1
  holds "two hosts, a program in another order" AWAY=4 BREAKS=0 STUBBORN=1
  holds "two hosts, a leader for each set" AWAY=6 SET0=7 SET1=6 DEVIANT=1 FREEZES=1
  holds "two hosts, a set inside one and a set of both" AWAY=4 SET0=3 SET1=6 DEVIANT=1
fi
((${#FAILED[@]} == 0)) || die "model: ${FAILED[*]}"
