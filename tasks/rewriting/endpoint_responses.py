"""What a server's answer means: a reply, trouble that may pass, or a refusal that every question would meet."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from tasks.rewriting.cache import Reply

EXCERPT = 300               # characters of what a server says that a message repeats


@dataclass(frozen=True)
class Trouble:
    """Why a request brought no reply. again: worth another try; wait: what the server asks for [seconds]."""

    text: str
    again: bool = True
    wait: float = 0.0
    said: str | None = None      # by a server that answers, but with no chat completion


def read_response(response: httpx.Response, url: str, model: str, key_variable: str, with_key: bool) -> Reply | Trouble:
    """The reply of a chat completion, or what is the matter and whether it may pass. url: where it came from."""
    status = response.status_code
    if status == 200:
        return read_completion(response.text) or Trouble(
            f"{url} answers, but not with a chat completion; is it the address up to and including /v1? It says: "
            f"{excerpt(response.text)}", said=response.text)
    says = f"{url} says HTTP {status}: {excerpt(response.text)}"
    if status in (408, 429) or status >= 500:
        return Trouble(says, wait=retry_after(response.headers.get("Retry-After", "")))
    if status in (401, 403):
        named = f"the environment variable {key_variable}" if key_variable else "an environment variable, named by " \
            "rewriter.key_variable"
        return Trouble(f"{url} wants a valid key (HTTP {status}): put it in {named}"
                       + ("; the one there is refused" if with_key else "; none is there"), again=False)
    if status == 404:
        return Trouble(f"there is no model {model!r} at {url}, or no such address (HTTP 404): rewriter.model is the name "
                       f"that the server uses, rewriter.url goes up to and including /v1. It says: "
                       f"{excerpt(response.text)}", again=False)
    return Trouble(f"{says}; the server refuses the request as it is: check rewriter.url, rewriter.model, "
                   "rewriter.temperature and rewriter.maximum_tokens", again=False)


def read_completion(text: str) -> Reply | None:
    """The first choice of a chat completion; None for anything else. A reply without text has content ""."""
    try:
        answer = json.loads(text)
        choice = answer["choices"][0]
        content, finish = choice["message"].get("content"), choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    if not isinstance(content, str | None):
        return None
    usage = answer.get("usage")
    content = (content or "").encode(errors="replace").decode()      # JSON may hold halves of characters
    return Reply(content, str(finish or "stop"), _count(usage, "prompt_tokens"), _count(usage, "completion_tokens"))


def retry_after(text: str) -> float:
    """Seconds to wait by a Retry-After header, a number of seconds or a date; 0 where it says nothing or the past."""
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def excerpt(text: str) -> str:
    """The beginning of what a server says, on one line."""
    line = " ".join(text.split())
    return (line[:EXCERPT] + (" ..." if len(line) > EXCERPT else "")) or "nothing"


def _count(usage: Any, name: str) -> int:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) else 0
