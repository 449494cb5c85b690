"""Clozes from questions: by rule, or by a language model behind an endpoint."""

from __future__ import annotations

from tasks.rewriting.base import Rewriter
from tasks.specs import RewriterSpec


def rewriter_for(spec: RewriterSpec) -> Rewriter:
    """The rewriter of this spec. Raises `SpecError` where an endpoint's settings cannot work."""
    if spec.kind == "endpoint":
        from tasks.rewriting.endpoint import Endpoint

        return Endpoint(spec)
    from tasks.rewriting.rules import Rules

    return Rules()
