#!/usr/bin/env bash
# Random operations, each compared with what one process computes, on 2 and 4 ranks and on two
# pretended hosts, for SOAK_MINUTES (30) in all; a table of what each rank held more at the end.
# SOAK_SEED repeats a run, ONLY="two hosts" chooses layouts (tests/multiproc/soak.py).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT"

export PYTHONPATH="$ROOT/tests${PYTHONPATH:+:$PYTHONPATH}"
exec scripts/in_environment.sh python -m multiproc.soak --minutes "${SOAK_MINUTES:-30}" \
  ${SOAK_SEED:+--seed "$SOAK_SEED"} ${ONLY:+--only "$ONLY"}
