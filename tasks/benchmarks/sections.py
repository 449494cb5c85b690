"""What a preset is made of: sections, each a plain description of one kind of measurement.

Free of torch, so that presets can be listed at once. `module` names the file that measures a section: it has
`points(section, conditions)`, `measure(section, point, conditions)` -> rows, and where it matters
`absent(section, conditions)` -> sentences and `finish(rows)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

FORWARD, BACKWARD = "forward", "forward and backward"
DECODE = "decode step"
FIRST_TOKEN, GENERATION = "time to first token", "generation"
STEP = "step after a history"
MODEL_FORWARD, PREFIXES, INCREMENTAL = "model forward", "generation by prefixes", "generation, incremental"


@dataclass(frozen=True)
class Sweep:
    """Which operations at which lengths and batches."""

    operations: tuple[str, ...]
    lengths: tuple[int, ...]
    batches: tuple[int, ...] = (1,)
    heads: int = 8
    backward: bool = False
    peers: bool = False
    naive: bool = False        # our naive form too, where rows are short
    padded: bool = True
    seconds: float = 0.5       # of timing for each implementation and point, on a CPU
    fewest: int = 3            # repetitions

    module: ClassVar[str] = "tasks.benchmarks.sweep"

    @property
    def sizes(self) -> tuple[int, ...]:
        """What `lengths` of a spec chooses from."""
        return self.lengths

    def about(self) -> str:
        """One line for people."""
        return (f"{BACKWARD if self.backward else FORWARD}: {', '.join(self.operations)}; n = "
                f"{', '.join(f'{n:,}' for n in self.lengths)}; batch {', '.join(map(str, self.batches))}"
                + ("; beside installed peers" if self.peers else ""))


@dataclass(frozen=True)
class Decode:
    """Which operations after which contexts."""

    operations: tuple[str, ...]
    contexts: tuple[int, ...]
    batch: int = 1
    heads: int = 8
    seconds: float = 0.3       # of timing for each operation and context, on a CPU
    fewest: int = 5

    module: ClassVar[str] = "tasks.benchmarks.decode"

    @property
    def sizes(self) -> tuple[int, ...]:
        """What `lengths` of a spec chooses from."""
        return self.contexts

    def about(self) -> str:
        """One line for people."""
        return (f"{DECODE}: {', '.join(self.operations)}; context {', '.join(f'{n:,}' for n in self.contexts)}; "
                f"batch {self.batch}")


@dataclass(frozen=True)
class WholeModels:
    """Presets by name (empty: all), a prompt and a number of new tokens."""

    presets: tuple[str, ...] = ()
    prompt: int = 512
    new: int = 64
    batch: int = 1
    seconds: float = 2.0
    fewest: int = 3

    module: ClassVar[str] = "tasks.benchmarks.whole_models"

    def about(self) -> str:
        """One line for people."""
        return (f"{FIRST_TOKEN} and {GENERATION}: {', '.join(self.presets) or 'every model preset the machine can hold'}; "
                f"prompt {self.prompt:,}, {self.new} new tokens, batch {self.batch}")


@dataclass(frozen=True)
class Growth:
    """Histories at which each mixer takes a step."""

    histories: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    width: int = 256
    heads: int = 4
    seconds: float = 0.15
    fewest: int = 5

    module: ClassVar[str] = "tasks.benchmarks.growth"

    def about(self) -> str:
        """One line for people."""
        return (f"growth of cost and state: every streaming mixer, width {self.width}; history "
                f"{', '.join(f'{n:,}' for n in self.histories)}")


@dataclass(frozen=True)
class Efficiency:
    """A model's size, the lengths, and the stride of the prefixes."""

    lengths: tuple[int, ...] = (512, 1024, 2048)
    simulated: tuple[int, ...] = (1024,)
    stride: int = 128
    layers: int = 2
    width: int = 256
    heads: int = 4
    vocabulary: int = 1024
    seconds: float = 0.6
    fewest: int = 3

    module: ClassVar[str] = "tasks.benchmarks.efficiency"

    def about(self) -> str:
        """One line for people."""
        return (f"LAVO's protocols: {MODEL_FORWARD} at n = {', '.join(f'{n:,}' for n in self.lengths)}; generation of "
                f"{', '.join(f'{n:,}' for n in self.simulated)} tokens, every {self.stride}th length; {self.layers} layers, "
                f"width {self.width}, batch 1")


Section = Sweep | Decode | WholeModels | Growth | Efficiency
