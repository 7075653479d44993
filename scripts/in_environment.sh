#!/usr/bin/env bash
# Runs a command with the project's Python first on PATH. Usage: in_environment.sh COMMAND...
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT"
export_run_environment "$(find_python)"
exec "$@"
