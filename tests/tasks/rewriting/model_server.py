"""A real HTTP server that speaks the OpenAI chat API on 127.0.0.1, with an answer by script or by a tiny model."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tasks.datasets.records import Record
from tasks.specs import RewriterSpec

TOKENS = {"prompt_tokens": 200, "completion_tokens": 10}


@dataclass
class Say:
    """One HTTP answer. seconds: before it is sent; hang_up: the connection is closed instead."""

    content: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    finish: str = "stop"
    raw: str | None = None
    seconds: float = 0.0
    hang_up: bool = False

    def text(self) -> str:
        if self.raw is not None:
            return self.raw
        if self.status != 200:
            return json.dumps({"error": {"message": self.content}})
        return json.dumps({"choices": [{"message": {"role": "assistant", "content": self.content},
                                        "finish_reason": self.finish}], "usage": TOKENS})


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *args) -> None:
        """A caller that left before its answer is no news here."""


class ModelServer:
    """Counts what it is asked. script: (number of the request from 1, its body) -> Say or the text to say."""

    def __init__(self, script: Callable[[int, dict], Say | str]) -> None:
        self.script = script
        self.questions: list[str] = []           # one for each request
        self.answered: list[str] = []            # those of them that got a text
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.times: list[float] = []
        self.most_at_once = self.at_once = 0
        self.lock = threading.Lock()
        self.http = _Quiet(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def die(self) -> None:
        """Stop listening and cut the connections there are."""
        self.http.shutdown()
        self.http.server_close()

    def _enter(self, body: dict, headers: dict[str, str], path: str) -> int:
        with self.lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.questions.append(question_of(body))
            self.headers.append(headers)
            self.paths.append(path)
            self.times.append(time.monotonic())
            return len(self.questions)

    def _leave(self, body: dict, said: Say | None) -> None:
        with self.lock:
            self.at_once -= 1
            if said is not None:
                self.answered.append(question_of(body))

    def _handler(server):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                number = server._enter(body, dict(self.headers), self.path)
                said = server.script(number, body)
                said = said if isinstance(said, Say) else Say(said)
                time.sleep(said.seconds)
                server._leave(body, said if said.status == 200 and not said.hang_up and said.raw is None else None)
                if said.hang_up:
                    self.close_connection = True
                    return
                text = said.text().encode()
                self.send_response(said.status)
                for name, value in {"Content-Length": str(len(text)), **said.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args) -> None:
                """Quiet."""

        return Handler


@contextmanager
def serving(script: Callable[[int, dict], Say | str]):
    server = ModelServer(script)
    try:
        yield server
    finally:
        server.die()


def question_of(body: dict) -> str:
    return last_turn(body)[0]


def last_turn(body: dict) -> tuple[str, str]:
    """Question and answer of the record, out of a request."""
    question, answer = body["messages"][-1]["content"].rsplit("Question: ", 1)[1].split("\nAnswer: ")
    return question, answer


def good(number: int, body: dict) -> str:
    """A model that does as it is told."""
    question, answer = last_turn(body)
    return f"{cloze_for(question)} {answer}"


def cloze_for(question: str) -> str:
    return f"What answers '{question.removesuffix('?')}' is"


def records(count: int, start: int = 0) -> list[Record]:
    return [Record(f"r{k}", f"d{k}", f"The town of N{k} was founded in year {k}.", f"When was N{k} founded?",
                   (f"in year {k}",)) for k in range(start, start + count)]


def clozes(some: Iterable[Record]) -> list[str]:
    return [cloze_for(record.question) for record in some]


def spec(url: str, **changes: Any) -> RewriterSpec:
    return RewriterSpec(kind="endpoint", url=url, **{"model": "tiny", "tries": 3, "timeout": 20.0, "concurrency": 4,
                                                     "key_variable": "REWRITER_TEST_KEY"} | changes)
