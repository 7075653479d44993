#!/usr/bin/env bash
# Checks the Promela model of the frozen schedule (docs/decisions/0008): the protocol has to keep
# its promises in every configuration, and every mutant of it has to break the promise named here
# by its number in 0008. Each line ends with the seconds of CPU time it took.
# Usage: model.sh [quick|mutants]. All takes minutes and 1 GB of memory a core. quick: every second
# check of all mutants and five configurations, the others with the next commit, half a minute; it
# leaves out second freezes, what a single set of three may come to in its first step, most sets on
# two hosts, and failures of other ranks there. mutants: only these.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT"

SELECTION="${1:-all}"
[[ "$SELECTION" =~ ^(all|quick|mutants)$ ]] || die "got '$SELECTION', expected quick or mutants"
command -v spin >/dev/null || die "spin is missing. Run: scripts/setup.sh model"
MODEL="$ROOT/docs/models/frozen_schedule.pml"
TREE="$(mktemp -d)"
end() {
  local running
  mapfile -t running < <(jobs -p)
  ((${#running[@]} == 0)) || kill "${running[@]}" 2>/dev/null || true
  wait
  rm -rf "$TREE"
}
trap end EXIT
cd "$TREE"

# In the folder of one check; leaves pan.log.
verify() { # verify OPTIMIZATION DEFINITION...
  local optimization="$1"
  shift
  spin -a "${@/#/-D}" "$MODEL" >/dev/null
  "${CC:-cc}" "$optimization" -w -DSAFETY -DCOLLAPSE -DMEMLIM=4096 -o pan pan.c
  # The verifier ends with 0 whatever it finds.
  ./pan -m100000 >pan.log
}

broken() { # What pan.log says is broken: the number of a promise, or nothing.
  if grep -qE 'max search depth|out of memory|MEMLIM' pan.log; then
    echo "not known, as the search was cut short"
  elif grep -q 'errors: 0$' pan.log; then
    echo nothing
  else
    sed -nE 's/^pan.*assertion violated .*\|\|\(([0-9]+)==0\).*/\1/p' pan.log
  fi
}

run_check() { # run_check EXPECTED TITLE OPTIMIZATION DEFINITION...; fails when something else is broken
  local expected="$1" title="$2" found seconds states folder TIMEFORMAT=%U
  folder="$(mktemp -d -p "$TREE")"
  cd "$folder"
  if ! { time verify "$3" "${@:4}" 2>verify.log; } 2>seconds.log; then
    echo "FAILED  $title: $(tail -3 verify.log)" | tee -a "$TREE/failed"
    return 1
  fi
  found="$(broken)"
  seconds="$(tail -1 seconds.log)"
  states="$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' pan.log)"
  cd "$TREE"
  rm -rf "$folder"
  if [[ "$found" != "$expected" ]]; then
    echo "FAILED  $title: broken is $found, expected $expected" | tee -a "$TREE/failed"
    return 1
  fi
  echo "ok      $title ($states states, $seconds s)"
}

# As many at a time as there are cores; the titles come in the order in which they end.
STARTED=0
FAILED=0
TURN="$(git -C "$ROOT" rev-list --count HEAD 2>/dev/null || echo 0)"
check() { # check EXPECTED TITLE OPTIMIZATION DEFINITION...
  TURN=$((TURN + 1))
  if [[ "$SELECTION" == quick ]] && ((TURN % 2)); then return; fi
  if ((STARTED > 0 && STARTED >= JOBS)); then end_one; fi
  run_check "$@" &
  STARTED=$((STARTED + 1))
}

end_one() {
  wait -n || FAILED=$((FAILED + 1))
  STARTED=$((STARTED - 1))
}

# A mutant is found soon: better compiled fast than run fast.
breaks() { # breaks PROMISE TITLE DEFINITION...
  check "$1" "mutant: $2, breaks $1" -O0 "${@:3}"
}

holds() { # holds TITLE DEFINITION...
  check nothing "$1" -O2 "${@:2}"
}

FAILS=(BREAKS=0 FAILS=1 FREEZES=1)
CRASHES=(BREAKS=0 CRASHES=1 FREEZES=1)
# The second of two steps, when all have ended the first: a part of what two steps may come to.
LATER=(BEFORE=1 STEPS=1)
# Rank 0 on one host; on the other rank 1, which leads, and rank 2. Rank 0 has a set of its own.
HOSTS=(AWAY=6 SET0=7 SET1=1)

breaks 1 "executes before all votes are read" MUTANT=1
breaks 1 "takes READY back" MUTANT=2
breaks 4 "never loses patience" MUTANT=3 STUBBORN=1 BREAKS=0
breaks 2 "counts announcements from before the freeze" MUTANT=4
breaks 4 "breaks on thaw with a vote undecided" MUTANT=5
breaks 5 "freezes before all have thawed" MUTANT=6 SET0=3 SET1=6 STEPS=3
breaks 1 "asks no other host" MUTANT=7 AWAY=4
breaks 1 "looks at its host only" MUTANT=8 AWAY=4
breaks 1 "speaks for its host too soon" MUTANT=9 AWAY=4
breaks 4 "says no farewell when it fails" MUTANT=10 "${FAILS[@]}"
breaks 1 "takes who left without a vote for READY" MUTANT=11 "${FAILS[@]}"
breaks 1 "takes who left after READY for BREAK" MUTANT=12 SET0=7 SET1=1 DEVIANT=2 "${FAILS[@]}"
breaks 4 "stays when its parent has left" MUTANT=13 CHAIN=1 DEVIANT=1 "${FAILS[@]}"
breaks 4 "stays when its leader has left" MUTANT=14 "${HOSTS[@]}" DEVIANT=1 "${FAILS[@]}"
breaks 1 "fails and takes its host's READY back" MUTANT=15 "${HOSTS[@]}" DEVIANT=1 "${FAILS[@]}"
breaks 1 "takes a leader that died for BREAK" MUTANT=16 "${HOSTS[@]}" DEVIANT=1 "${CRASHES[@]}"
breaks 4 "announces not all it holds when it thaws" MUTANT=17

if [[ "$SELECTION" == quick ]]; then
  holds "sets that share a rank, any deviation" SET0=3 SET1=6 FREEZES=1
  holds "sets that share a rank, a crash" SET0=3 SET1=6 "${CRASHES[@]}"
  holds "one set, any deviation after a step" "${LATER[@]}" FREEZES=1
  holds "two hosts, any deviation of a leader" "${HOSTS[@]}" DEVIANT=1 FREEZES=1
  holds "two hosts, a failure of a leader" "${HOSTS[@]}" DEVIANT=1 "${FAILS[@]}"
fi
if [[ "$SELECTION" == all ]]; then
  holds "one set, any deviation" BREAKS=1
  holds "one set, a program in another order" BREAKS=0 STUBBORN=1
  holds "one set, an impatient rank" BREAKS=0 WANTS=1
  holds "one set, a crash" "${CRASHES[@]}"
  holds "one set, a failure" "${FAILS[@]}"
  holds "sets that share a rank, any deviation" SET0=3 SET1=6
  holds "sets that share a rank, a crash" SET0=3 SET1=6 "${CRASHES[@]}"
  holds "sets that share a rank, a failure" SET0=3 SET1=6 "${FAILS[@]}"
  holds "sets that share a rank, a failure of a parent" SET0=3 SET1=6 CHAIN=1 DEVIANT=1 "${FAILS[@]}"
  holds "sets that share two ranks, any deviation" SET0=7 SET1=6
  holds "sets that share two ranks, a crash" SET0=7 SET1=6 "${CRASHES[@]}"
  holds "two hosts, any deviation of a leader" AWAY=4 DEVIANT=0 FREEZES=1
  holds "two hosts, any deviation of another rank" AWAY=4 DEVIANT=1 FREEZES=1
  holds "two hosts, any deviation of a rank alone on its host" AWAY=4 DEVIANT=2 FREEZES=1
  holds "two hosts, a program in another order" AWAY=4 BREAKS=0 STUBBORN=1
  holds "two hosts, a leader for each set" AWAY=6 SET0=7 SET1=6 DEVIANT=1 FREEZES=1
  holds "two hosts, a set inside one and a set of both" AWAY=4 SET0=3 SET1=6 DEVIANT=1
  holds "two hosts, a failure of the root" "${HOSTS[@]}" DEVIANT=0 "${FAILS[@]}"
  HOSTS=(AWAY=6 SET0=7 SET1=6) # Rank 1 leads in both.
  holds "two hosts, a crash of a leader" "${HOSTS[@]}" DEVIANT=1 "${CRASHES[@]}"
  holds "two hosts, a crash of a follower" "${HOSTS[@]}" DEVIANT=2 "${CRASHES[@]}"
  holds "two hosts, a failure of a leader" "${HOSTS[@]}" DEVIANT=1 "${FAILS[@]}"
  holds "two hosts, a failure of a follower" "${HOSTS[@]}" DEVIANT=2 "${FAILS[@]}"
  holds "two hosts, a failure of a leader and parent" "${HOSTS[@]}" CHAIN=1 DEVIANT=1 "${FAILS[@]}"
fi
while ((STARTED > 0)); do end_one; done
((FAILED == 0)) || die "model: $FAILED checks failed:"$'\n'"$(cat "$TREE/failed")"
