"""All targets in Python, by name."""

from __future__ import annotations

from fuzz.python import debug_targets, rendezvous_targets, settings_targets, stream_targets

TARGETS = {
    target.name: target
    for module in (settings_targets, stream_targets, rendezvous_targets, debug_targets)
    for target in module.TARGETS
}
