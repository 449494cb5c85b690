"""Which keys are near, which summaries may be read, and what positions add to their scores.

    local      keys of the query at position p        offsets at most
    sliding    p - W + 1 .. p                         W
    blocks     p // W * W .. p                        W
    overlap    (p // W - 1) * W .. p                  2W

Windows and chunks begin at the document's first token. Letters: O offsets, S slots.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.errors import ConfigError

LOCALS = ("sliding", "blocks", "overlap")


class Rule(NamedTuple):
    """Near keys, and chunks of `chunk` tokens with `rank` summaries each."""

    window: int
    chunk: int
    rank: int = 1
    local: str = "sliding"


class Places(NamedTuple):
    """Position scores. near_OHK, table_HO: by offset o = 0.. back; far_SHK: by slots back, 0 = the newest that is read."""

    near_OHK: torch.Tensor | None = None  # adds scale q·near_o
    table_HO: torch.Tensor | None = None  # adds table_o; (1, O) serves all heads
    far_SHK: torch.Tensor | None = None  # adds scale q·far_b, b = rank (p // chunk) - 1 - slot
    key_BNH: torch.Tensor | None = None  # adds to the near key's score, whatever the query


def reach(rule: Rule) -> int:
    """Offsets back that are near at most, the token itself included; a cache holds one less."""
    return rule.window * (2 if rule.local == "overlap" else 1)


def first_near(rule: Rule, position):
    """Position of the first near key, possibly negative; an int or a tensor."""
    if rule.local == "sliding":
        return position - rule.window + 1
    return (position // rule.window - int(rule.local == "overlap")) * rule.window


def check_rule(kind: str, rule: Rule) -> None:
    """ConfigError unless every token behind the reader is near or in a closed chunk: an open chunk is read by nobody."""
    if rule.local == "sliding" and rule.window < rule.chunk:
        raise ConfigError(f"{kind}: window {rule.window} is smaller than chunk {rule.chunk}, so that some recent tokens would be "
                          "neither near nor summarised; choose window >= chunk")
    if rule.local != "sliding" and rule.window % rule.chunk:
        raise ConfigError(f"{kind}: window {rule.window} is not a multiple of chunk {rule.chunk}, so that some recent tokens "
                          f"would be neither near nor summarised; with local={rule.local!r} make it one")


def near_pairs(rule: Rule, length: int) -> tuple[int, int]:
    """(query-key pairs of a row's near part, near keys of the token after it)."""
    W = rule.window
    if rule.local == "sliding":
        full = min(length, W)
        return full * (full + 1) // 2 + (length - full) * W, min(length + 1, W)
    whole, rest = divmod(length, W)
    pairs = whole * W * (W + 1) // 2 + rest * (rest + 1) // 2
    if rule.local == "blocks":
        return pairs, rest + 1
    before = max(whole - 1, 0) * W * W + (rest * W if whole else 0)
    return pairs + before, rest + 1 + (W if whole else 0)


def far_pairs(rule: Rule, length: int) -> tuple[int, int]:
    """(query-summary pairs of a row, summaries that the token after it reads)."""
    whole, rest = divmod(length, rule.chunk)
    return (rule.chunk * whole * (whole - 1) // 2 + rest * whole) * rule.rank, whole * rule.rank
