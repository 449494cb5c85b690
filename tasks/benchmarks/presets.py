"""The presets: which measurements belong together, for whom, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import SpecError
from tasks.benchmarks.sections import Decode, Efficiency, Growth, Section, Sweep, WholeModels

MIXING = ("sdpa", "taylor", "prefix", "lavo")
SCANS = ("window", "linear_scan", "gated_scan", "gated_scan_channel", "delta_scan", "selective_scan")
BLOCKS = ("mamba2_block",)
STEPS = ("sdpa", "taylor", "lavo", "linear_scan", "gated_scan", "gated_scan_channel")
TABLE5 = ("sdpa", "taylor", "jrt_prompt", "prefix", "lavo")
CONTEXTS = (512, 2048, 8192, 32_768, 131_072)


@dataclass(frozen=True)
class Preset:
    """`seconds`: from when on every figure gets less than half of its time; None: none is hurried."""

    about: str
    takes: str
    sections: tuple[Section, ...]
    seconds: float | None = None
    cuda: bool = False             # only on a GPU


def _efficiency(device: str) -> Efficiency:
    """As published on a GPU (12 layers of 768, GPT-2's vocabulary); a model that a CPU can carry otherwise."""
    if device == "cuda":
        return Efficiency((8192, 12_288, 16_384), (8192, 16_384), 512, 12, 768, 12, 50_257)
    return Efficiency()


def presets(device: str) -> dict[str, Preset]:
    """Every preset by name, as it is on this kind of device."""
    gpu = device == "cuda"
    size = {"batches": (16,), "heads": 16} if gpu else {}
    many = {"batch": 16, "heads": 16} if gpu else {}
    quick = Sweep(MIXING, (512, 1024, 2048), seconds=0.15, **size)
    gate = (
        Sweep(MIXING, (4096, 8192), seconds=0.6, fewest=2, **size),
        Sweep(MIXING, (2048,), peers=True, seconds=0.4, fewest=2, **size),
        Sweep(("sdpa", "taylor"), (4096,), backward=True, seconds=0.6, fewest=2, **size),
        Sweep(MIXING, (512, 1024), seconds=0.3, fewest=5, **size),
        Decode(("sdpa", "taylor", "lavo"), CONTEXTS, seconds=0.1, **many),
    )
    long = (Sweep(MIXING, (32_768,), seconds=3.0, fewest=1, **size),
            Sweep(MIXING, (8192, 16_384), seconds=2.0, fewest=2, **size),
            Sweep(SCANS, (8192,), seconds=1.0, fewest=2, **size),
            Sweep(MIXING + SCANS + BLOCKS, (512, 1024, 2048), peers=True, naive=True, seconds=0.3, fewest=2, **size),
            Sweep(("sdpa", "taylor", "prefix", "lavo"), (1024, 4096), backward=True, seconds=1.0, fewest=2, **size),
            Decode(STEPS, CONTEXTS, **many))
    decode = (Decode(STEPS, (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072), seconds=0.5, **many),)
    models = (WholeModels(prompt=1024 if gpu else 512, batch=1),)
    growth, lavo = (Growth(),), (_efficiency(device),)
    table5 = (Sweep(TABLE5, (2048, 4096, 8192, 16_384, 32_768), (16,), 16, peers=True, padded=False),
              Sweep(TABLE5, (16_384,), (1, 2, 4, 8, 32, 64), 16, padded=False))
    return {
        "quick": Preset("attention, Taylor, prefix and LAVO on short rows", "seconds", (quick,), seconds=6),
        "gate": Preset("what a release must hold: lengths to 8,192, peers, gradients, decode", "under a minute", gate,
                       seconds=24),
        "long": Preset("32,768 tokens, every scan, every peer", "minutes", long),
        "decode": Preset("one token after contexts of 512 to 131,072", "half a minute", decode),
        "models": Preset("whole models: time to first token, generation", "half a minute", models),
        "growth": Preset("cost and state of every mixer as the history grows", "half a minute", growth),
        "lavo": Preset("LAVO's two efficiency protocols", "a minute or two", lavo),
        "table5": Preset("JRT Table 5 under its own conditions: batch 16, 16 heads, bfloat16, 2,048 to 32,768 tokens",
                         "minutes on a GPU", table5, cuda=True),
        "full": Preset("all of the above", "ten minutes or so",
                       gate + long + decode + models + growth + lavo + (table5 if gpu else ())),
    }


def choose(name: str, device: str) -> Preset:
    """A preset by name. SpecError for one that this kind of device cannot run, with what it needs."""
    found = presets(device)[name]
    if found.cuda and device != "cuda":
        raise SpecError(f"preset {name}: {found.about}. It needs one CUDA GPU with about 80 GB: run it there with "
                        f"--set device=cuda (through Ray with --flow). On this CPU take gate (to 8,192 tokens) or long "
                        "(32,768)")
    return found
