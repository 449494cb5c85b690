"""One question to a server that speaks the OpenAI chat API, until it is answered or there is no point in going on.

Tried again, after waits that double and vary: time-outs, broken connections, HTTP 408, 429 and 5xx, and what is not a
chat completion. `Retry-After` is obeyed. Any other refusal would meet every question alike, so it stops the work.

The key is read from its environment variable by the process that sends, goes into one header, and is struck out of
whatever the server says before that is kept or shown.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import httpx
from pydantic import SecretStr

from storage.errors import ConfigError, SpecError
from tasks.rewriting.cache import Reply
from tasks.rewriting.endpoint_prompts import Ask
from tasks.rewriting.endpoint_responses import Trouble, read_response
from tasks.specs import RewriterSpec

LONGEST_WAIT = 60.0           # between two tries, unless the server asks for more [seconds]
LONGEST_RETRY_AFTER = 600.0   # a server that asks for more stops the work [seconds]
LOOPBACK = {"127.0.0.1", "localhost", "::1"}     # no proxy leads there


@dataclass(frozen=True)
class Sending:
    """How to send: everything but the key, so that it may travel to other processes. Times in seconds."""

    url: str
    model: str
    key_variable: str
    with_key: bool
    timeout: float
    tries: int
    first_wait: float

    @classmethod
    def of(cls, spec: RewriterSpec, first_wait: float) -> Sending:
        """Raises SpecError for an address that cannot be used, ConfigError for a key that no header can carry."""
        check_address(spec.url)
        return cls(spec.url.rstrip("/"), spec.model, spec.key_variable, read_key(spec.key_variable) is not None,
                   spec.timeout, spec.tries, first_wait)


@dataclass(frozen=True)
class Answered:
    """A reply. tries: requests that it took, 0 for one that another process had asked for meanwhile."""

    key: str
    reply: Reply
    tries: int


class Stopped(Exception):
    """There is no point in asking on. The text says why and what to do."""


def check_address(url: str) -> None:
    """Raises SpecError unless it is a plain http(s) address: what else an address can hold would be written down."""
    parts = urlsplit(url)
    if "@" in url or parts.query or parts.fragment:
        raise SpecError("rewriter.url: holds a user name, password or query, which every manifest would show; give the "
                        "bare address, and the key in the environment variable that rewriter.key_variable names")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SpecError(f"rewriter.url: got {url!r}, expected an address such as http://127.0.0.1:8000/v1, or vllm: for "
                        "engines on the cluster's own GPUs")


def read_key(variable: str) -> SecretStr | None:
    """The key, None where the variable is not set or empty. ConfigError where it cannot be sent."""
    key = os.environ.get(variable, "").strip() if variable else ""
    if not key:
        return None
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"the environment variable {variable} holds blanks, line breaks or letters beyond ASCII, "
                          "which no key has; set it to the key alone")
    return SecretStr(key)


class Client:
    """Answers any number of callers at once, in one event loop. Raises Stopped where the key is missing here alone."""

    def __init__(self, sending: Sending) -> None:
        self.sending = sending
        self.key = read_key(sending.key_variable) if sending.with_key else None
        if sending.with_key and self.key is None:
            raise Stopped(f"a worker has no {sending.key_variable} in its environment; set it on every machine, before "
                          "Ray is started there")
        self.stopping = asyncio.Event()
        self.understood = False      # a chat completion has come from there
        self.connections: list[httpx.AsyncClient] = []
        self.idle: list[httpx.AsyncClient] = []
        self.certificates: ssl.SSLContext | bool = sending.url.startswith("https") and httpx.create_ssl_context()

    async def answer(self, ask: Ask) -> Answered:
        """Ask until there is a reply. Raises Stopped, or CancelledError once `stopping` is set."""
        for attempt in range(1, self.sending.tries + 1):
            if self.stopping.is_set():
                raise asyncio.CancelledError
            found = await self._once(ask)
            if isinstance(found, Reply):
                self.understood = True
                return Answered(ask.key, found, attempt)
            if not found.again:
                raise Stopped(f"{found.text} (question {ask.where!r})")
            if found.wait > LONGEST_RETRY_AFTER:
                raise Stopped(f"{found.text} (question {ask.where!r}); it asks to be left alone for {found.wait:,.0f} s")
            if attempt < self.sending.tries:
                await self._pause(max(found.wait, self._backoff(attempt)))
        if found.said is not None and self.understood:
            return Answered(ask.key, Reply(found.said, "malformed"), attempt)
        raise Stopped(f"no reply to question {ask.where!r} in {attempt} {'try' if attempt == 1 else 'tries'}, the last "
                      f"time: {found.text}")

    async def close(self) -> None:
        for connection in self.connections:
            await connection.aclose()

    async def _once(self, ask: Ask) -> Reply | Trouble:
        """One request. Nothing is raised from within an `except`: httpx's errors carry the request and its headers."""
        sending = self.sending
        connection = self.idle.pop() if self.idle else self._connection()
        try:
            async with asyncio.timeout(sending.timeout):
                response = await connection.post(f"{sending.url}/chat/completions", json=ask.body)
        except (TimeoutError, httpx.TimeoutException):
            return Trouble(f"{sending.url} did not answer within {sending.timeout:g} s (rewriter.timeout)")
        except httpx.RequestError as error:
            return self._without_key(Trouble(f"no connection to {sending.url}: {str(error) or type(error).__name__}"))
        finally:
            self.idle.append(connection)
        return self._without_key(read_response(response, sending.url, sending.model, sending.key_variable,
                                               sending.with_key))

    def _connection(self) -> httpx.AsyncClient:
        """One of as many as there are requests at once: the pool of one client for all looks at every connection, for
        every connection, at every request.
        """
        headers = {"Authorization": f"Bearer {self.key.get_secret_value()}"} if self.key else {}
        self.connections.append(httpx.AsyncClient(
            headers=headers, timeout=self.sending.timeout, verify=self.certificates, limits=httpx.Limits(max_connections=1),
            trust_env=urlsplit(self.sending.url).hostname not in LOOPBACK))
        return self.connections[-1]

    async def _pause(self, seconds: float) -> None:
        """Wait, or less if the work stops."""
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            return

    def _backoff(self, attempt: int) -> float:
        """Doubles from try to try; varied, so that many clients do not come back together."""
        return min(LONGEST_WAIT, self.sending.first_wait * 2 ** (attempt - 1)) * random.uniform(0.5, 1.5)

    def _without_key(self, found: Reply | Trouble) -> Reply | Trouble:
        """Servers repeat what they were sent."""
        if self.key is None:
            return found
        key = self.key.get_secret_value()
        texts = {name: value.replace(key, "[key]") for name, value in vars(found).items() if isinstance(value, str)}
        return replace(found, **texts)
