"""Replies of a real tiny model: our own byte model with random weights, behind the server. It makes no clozes; each of
its replies is counted under a reason and kept.
"""

from collections import Counter

import pytest

from models import ModelConfig, build, greedy
from tasks.datasets.records import Unusable
from tasks.rewriting.cache import Reply
from tasks.rewriting.endpoint import Endpoint
from tasks.rewriting.endpoint_replies import cloze_of
from tasks.tokenizers import load_tokenizer
from tests.tasks.rewriting.model_server import Say, records, serving, spec

LIMIT = 12      # longest reply [tokens]


@pytest.fixture(scope="module")
def say():
    """What the model says to a request: greedy bytes up to a newline, cut at the limit."""
    tokenizer = load_tokenizer("bytes")
    model = build(ModelConfig(width=16, vocabulary=tokenizer.vocabulary_size, plan=["full", "full"], seed=4, init_std=0.6,
                              mixers={"full": {"kind": "attention", "heads": 2}}, tie=False))

    def reply(number, body):
        prompt = "\n".join(turn["content"] for turn in body["messages"][-3:])
        ids = greedy(model, [tokenizer.encode(prompt)], maximum_new=body["max_tokens"],
                     stop={tokenizer.end_of_text, ord("\n")})[0]
        return Say(tokenizer.decode(ids), finish="length" if len(ids) == body["max_tokens"] else "stop")

    return reply


def test_a_tiny_model_end_to_end(say, tmp_path):
    some = records(12)
    bodies = {}
    with serving(lambda number, body: bodies.setdefault(body["messages"][-1]["content"], body) and say(number, body)) as server:
        endpoint = Endpoint(spec(server.url, maximum_tokens=LIMIT, concurrency=3), tmp_path)
        found = list(endpoint.clozes(some))
    direct = {content: say(0, body) for content, body in bodies.items()}
    expected = [cloze_of(Reply(said.content, said.finish), record.answers[0], record.id) for record in some
                for content, said in direct.items() if f"{record.question}\n" in content]
    assert found == expected and len(server.questions) == 12
    reasons = Counter(each.reason for each in found if isinstance(each, Unusable))
    assert reasons["truncated_reply"] + reasons["answer_not_at_end"] + reasons["empty_reply"] >= 6
    assert endpoint.bill["failed"] == sum(reasons.values())
    assert len({said.content for said in direct.values()}) > 1
