"""Clozes from questions: by rule, or by a language model behind an endpoint."""

from __future__ import annotations

from pathlib import Path

from tasks.rewriting.base import Rewriter
from tasks.specs import RewriterSpec


def rewriter_for(spec: RewriterSpec, home: Path | None = None) -> Rewriter:
    """The rewriter of this spec. Raises `SpecError` where an endpoint's settings cannot work.

    home  local folder of the store (`Store.folder`) below which an endpoint's replies are kept; None = of the home
    """
    if spec.kind == "endpoint":
        from tasks.rewriting.cache import folder_of
        from tasks.rewriting.endpoint import Endpoint

        return Endpoint(spec, folder_of(home))
    from tasks.rewriting.rules import Rules

    return Rules()
