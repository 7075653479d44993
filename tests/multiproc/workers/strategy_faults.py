"""A rank goes in the middle of a round: strategy_faults.py RESULT_DIR VICTIM WAY CALL

WAY is one of scenario.py. The others call step() until a round fails, or finish(). Each writes
RESULT_DIR/rank<r>.json: by strategy, the error and what became of the parameters.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from pathlib import Path

from multiproc.checks.strategy_models import STRATEGIES, Trained, real
from multiproc.reference import raw
from multiproc.workers.scenario import MISBEHAVIOUR

import mydist as md

NAMES = ("keep", "average", "weighted", "nesterov", "slow", "diloco", "streaming", "elastic")


def end(trained: Trained, call: str) -> dict[str, object]:
    """What the call raises, and whether parameters and anchors are those of the last round."""
    run = trained.optimizer._distribution.runs[0]
    before = [raw(anchor) for anchor in run.anchors()]
    moved = [raw(p) for p in trained.model.parameters()] != before
    error = ""
    try:
        trained.step(6) if call == "step" else trained.optimizer.finish()
    except md.MydistError as failure:
        error = type(failure).__name__
    after = [raw(anchor) for anchor in run.anchors()]
    parameters = [raw(p) for p in trained.model.parameters()]
    return {
        "error": error,
        "moved": moved,
        "restored": parameters == after,
        "same anchors": before == after,
        "digest": hashlib.sha256(b"".join(parameters)).hexdigest(),
    }


def main() -> None:
    folder, victim, way, call = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    md.init()
    # The launcher ends the others soon after; they are to say first what they have seen.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    several = {name: real(STRATEGIES[name](), prefix=f"{name}.") for name in NAMES}
    for trained in several.values():
        trained.step(4)
    md.barrier()  # What is under way by now arrives everywhere.
    if md.rank() == victim:
        MISBEHAVIOUR[way]()
    report = {name: end(trained, call) for name, trained in several.items()}
    (folder / f"rank{md.rank()}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
