"""The machine that figures belong to: its name, its memory, what is installed on it."""

from __future__ import annotations

import importlib.util
import platform
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import psutil
import torch

from storage.errors import SpecError

# Bytes per second of the memory as its maker states it [GB/s], where the driver does not tell clock and bus width.
STATED_BANDWIDTH = {"H200": 4800, "H100 PCIe": 2000, "H100": 3350, "GH200": 4000, "A100-SXM4-80GB": 2039,
                    "A100 80GB": 1935, "A100": 1555, "B200": 8000, "L40S": 864, "RTX 4090": 1008}
PEERS = ("flash-linear-attention", "transformers", "flash-attn", "mamba-ssm")


def processor() -> str:
    """Name of this machine's CPU."""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def name(device: str) -> str:
    """What the figures of `device` ("cpu" or "cuda") are labelled with."""
    if device == "cuda":
        return torch.cuda.get_device_name() if torch.cuda.is_available() else "CUDA device"
    return processor()


def check(device: str) -> None:
    """SpecError when this machine lacks the device."""
    if why := lacking(device):
        raise SpecError(why)


def lacking(device: str) -> str | None:
    """What this machine lacks for the device, and what helps; None if it has one."""
    if device != "cuda" or torch.cuda.is_available():
        return None
    return ("device cuda: this machine shows no CUDA device to torch. Run on a GPU node (with --flow Ray places the stage "
            "on one), or take device=cpu with preset quick, gate or long")


def versions() -> dict[str, str]:
    """Versions that a time depends on: torch, triton and the peers that are installed."""
    found = {"torch": torch.__version__}
    for package in ("triton", *PEERS):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@lru_cache
def installed(module: str) -> bool:
    """Whether a module has a source, told without importing it (its parent packages are, if they can be)."""
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        return False
    return spec is not None and spec.origin is not None


def bandwidth(device: str) -> float | None:
    """Bytes per second of a GPU's memory; None for a CPU, whose floor is the cache's business."""
    if device != "cuda":
        return None
    properties = torch.cuda.get_device_properties(0)
    clock, width = getattr(properties, "memory_clock_rate", 0), getattr(properties, "memory_bus_width", 0)
    if clock and width:
        return 2 * clock * 1e3 * width / 8
    for part, gigabytes in STATED_BANDWIDTH.items():
        if part in properties.name:
            return gigabytes * 1e9
    return None


def free_memory(device: str) -> int:
    """Bytes that a measurement may hope for."""
    return torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available
