"""A strategy of one's own: ranks average their parameters after 1, 2, 4, 8, … local steps."""

from dataclasses import dataclass

import mydist as md


@dataclass(eq=False)
class PowersOfTwo(md.Strategy):
    """Rounds become longer, up to `longest` steps; then a round follows every `longest` steps."""

    longest: int = 64

    def __post_init__(self) -> None:
        if self.longest < 1 or self.longest & (self.longest - 1):
            raise ValueError(f"PowersOfTwo: longest is {self.longest}, expected a power of two")

    def after_step(self, step: int) -> None:
        if step % self.longest and step & (step - 1):
            return  # Neither a multiple of `longest` nor a power of two.
        (part,) = self.parts
        change = part.change()  # The parameters minus the anchor: what this rank has done.
        self.job.average(change, "round")  # Becomes the mean over the ranks, in place.
        for anchor, moved in zip(part.anchor, change, strict=True):
            anchor.add_(moved)
        part.reset()  # The parameters become the anchor.
