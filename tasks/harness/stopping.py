"""Stop strings where a model chooses tokens.

A token that begins with a stop string ends an answer at once and nothing before it is lost. Where the string begins
inside a token or is spread over several, the answer goes on to its full length and its text is cut afterwards: the same
text, later.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tasks.tokenizers import Tokenizer


@functools.lru_cache(maxsize=64)
def stop_tokens(tokenizer: Tokenizer, until: tuple[str, ...]) -> frozenset[int]:
    """End of text, and the tokens that begin with one of the strings. A vocabulary is looked through once."""
    wanted = tuple(text.encode() for text in until if text)
    found = {token for token in range(tokenizer.vocabulary_size) if tokenizer.token_bytes(token).startswith(wanted)}
    return frozenset(found | {tokenizer.end_of_text}) if wanted else frozenset({tokenizer.end_of_text})


def cut_text(text: str, until: Sequence[str]) -> str:
    """The text before the first stop string in it."""
    ends = [place for place in (text.find(stop) for stop in until if stop) if place >= 0]
    return text[:min(ends)] if ends else text
