#!/usr/bin/env bash
# mypy --strict on the package as users import it: a folder of links puts launcher/ below mydist.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$ROOT"

VIEW="build/typecheck/mydist"
rm -rf build/typecheck
mkdir -p "$VIEW"
for entry in python/mydist/*; do
  [[ "$entry" == *.so || "$entry" == */lib || "$entry" == */launcher ]] || ln -s "$ROOT/$entry" "$VIEW/"
done
[[ ! -d launcher ]] || ln -s "$ROOT/launcher" "$VIEW/launcher"
ln -s "$ROOT/benchmarks" "$ROOT/scripts" "$ROOT/python/mydist_autoload.py" build/typecheck/
cd build/typecheck
"$(find_python)" -m mypy --config-file "$ROOT/pyproject.toml" --cache-dir "$ROOT/.mypy_cache" \
  --package mydist --package benchmarks --module mydist_autoload --module scripts.gpu_check --module scripts.docs_site --module scripts.fuzz
