"""What the MYDIST_* settings may be: a bad one is one line of mydistrun, not one error per rank.

docs/configuration.md lists the settings; csrc/config/config.cc reads them in the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

from mydist.launcher.flags import FLAGS, convert_value
from mydist.launcher.value_text import Convert, choice, integer, path, row_name, seconds

# None: a switch.
_CONVERTERS: Mapping[str, Convert | None] = {
    **{flag.variable: flag.convert for flag in FLAGS if flag.variable is not None},
    "MYDIST_CONTROLLER": row_name,
    "MYDIST_COORDINATOR_RADIX": integer(2, 1024),
    "MYDIST_NCCL_LIBRARY": path,
    "MYDIST_SHUTDOWN_SECONDS": seconds(0, 1e6),
    "MYDIST_TIMEOUT_SECONDS": seconds(0.1, 1e6),
}
# Only the ranks know what an extension adds to these.
_OUR_ROWS: Mapping[str, Convert] = {
    "MYDIST_ALGORITHM": choice(("auto", "shared_memory", "hierarchical", "flat")),
    "MYDIST_CONTROLLER": choice(("auto", "local", "mpi", "gloo")),
}
SETTINGS = tuple(sorted(_CONVERTERS))


def check_setting(variable: str, text: str, where: str, is_extended: bool) -> None:
    """Raises UsageError when the ranks would refuse the text; `where` says where it was found.

    An empty text counts as unset. A variable that is not in SETTINGS may be of an extension.
    """
    if not text or variable not in _CONVERTERS:
        return
    if variable in _OUR_ROWS and not is_extended:
        convert_value(_OUR_ROWS[variable], text, where)
    else:
        convert_value(_CONVERTERS[variable], text, where)
