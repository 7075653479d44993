"""Which backends the build offers."""

from __future__ import annotations

import torch  # noqa: F401  (the extension needs its libraries)

from mydist import _C


def missing_backends() -> dict[str, str]:
    """Reasons, by name, of the backends that this build cannot offer."""
    reports = [_C.backend_report(name) for name in ("local", "mpi", "gloo")]
    return {
        str(report["name"]): str(report["reason"]) for report in reports if not report["available"]
    }
