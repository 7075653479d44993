"""The ways in which a job fails, of modes.txt, as a table for docs/reliability.md.

python tests/faults/modes_page.py           # prints the table
python tests/faults/modes_page.py --write   # renews it on the page
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

MODES_TXT = Path(__file__).with_name("modes.txt")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
# How soon the user gets it.
BOUNDS = {
    "call": "at the call",
    "init": "in `init()`, on all ranks",
    "agreed": "below 1 s, on all ranks",
    "kernel": "below 1 s, on all survivors",
    "silence": "after the limit of silence",
    "late": "after 10 s, then at each doubling",
    "launcher": "below 5 s",
    "none": "no error",
}
_BEGIN, _END = "<!-- modes: begin -->\n", "<!-- modes: end -->\n"


@dataclass(frozen=True)
class Mode:
    """One of the ways. With a reason in `untested`, the tests are only the nearest ones."""

    number: int
    bound: str
    fault: str
    gives: str
    tests: tuple[str, ...]
    untested: str

    def row(self) -> str:
        """Its row of the table."""
        # A name may go on in the next line after its file, so that the table fits on a screen.
        tests = "<br>".join(f"`{test}`".replace("::", "::`<wbr>`") for test in self.tests)
        if self.untested:
            tests = f"none: {self.untested}. Nearest: {tests}"
        return f"| {self.number} | {self.fault} | {self.gives} | {BOUNDS[self.bound]} | {tests} |"


def read_modes(text: str | None = None) -> list[Mode]:
    """All modes, in their order."""
    blocks = (text or MODES_TXT.read_text(encoding="utf-8")).split("\n\n")
    return [_mode(block) for block in blocks if not block.startswith("#")]


def _mode(block: str) -> Mode:
    head, fault, gives, *rest = (line.strip() for line in block.strip().splitlines())
    number, bound = head.split()
    reasons = [line for line in rest if line.startswith("untested: ")]
    tests = tuple(line for line in rest if line not in reasons)
    return Mode(
        int(number), bound, fault, gives, tests, "".join(reasons).removeprefix("untested: ")
    )


def table() -> str:
    """The table as it stands on the page."""
    head = "| # | fault | what you get | how soon | tests |\n|---|---|---|---|---|\n"
    return head + "".join(mode.row() + "\n" for mode in read_modes())


def shown_on_page() -> str:
    """What stands there between the marks."""
    text = PAGE.read_text(encoding="utf-8")
    return text.partition(_BEGIN)[2].partition(_END)[0]


def write_page() -> None:
    """Renews what stands between the marks."""
    text = PAGE.read_text(encoding="utf-8")
    between = re.compile(re.escape(_BEGIN) + ".*" + re.escape(_END), re.DOTALL)
    PAGE.write_text(between.sub(lambda _: _BEGIN + table() + _END, text), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write_page()
    else:
        print(table(), end="")
