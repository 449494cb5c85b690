"""The rewriter with a model, against a real server: every way it can fail, and that nothing is paid for twice."""

import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from storage.errors import ArtifactError, ConfigError, SpecError
from tasks.datasets.records import Record, Unusable
from tasks.rewriting import endpoint_client, rewriter_for
from tasks.rewriting.endpoint import Endpoint
from tasks.rewriting.endpoint_prompts import INSTRUCTIONS, ask_for
from tests.conftest import ROOT
from tests.tasks.rewriting.model_server import Say, clozes, good, last_turn, records, serving, spec

QUICK = 0.01      # first wait between tries [seconds]
KEY = "sk-7f3QvX/secret+Value=="


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("REWRITER_TEST_KEY", raising=False)


def rewriter(server, cache, **changes):
    return Endpoint(spec(server.url, **changes), cache, first_wait=QUICK)


def at_first(*said):
    """These answers to the first requests, then good ones."""
    return lambda number, body: said[number - 1] if number <= len(said) else good(number, body)


# -------------------------------------------------------------------------------------------------- what is asked
def test_good_replies_in_order_and_what_is_sent(cache):
    with serving(good) as server:
        endpoint = rewriter(server, cache, price_in=0.5, price_out=2.0)
        assert list(endpoint.clozes(records(30))) == clozes(records(30))
    assert endpoint.bill == {"requests": 30, "cached": 0, "tokens_in": 6000, "tokens_out": 300, "retries": 0,
                             "failed": 0, "cost": pytest.approx(6000 * 0.5e-6 + 300 * 2e-6)}
    assert set(server.paths) == {"/v1/chat/completions"} and sorted(server.questions) == sorted(
        record.question for record in records(30))
    assert all("Authorization" not in headers for headers in server.headers)


def test_the_body_of_a_request(cache):
    bodies = []
    with serving(lambda number, body: bodies.append(body) or good(number, body)) as server:
        record = Record("r", "d", "", "Who\nbuilt  it?", ("A  B",))
        list(rewriter(server, cache, model="llama", temperature=0.3, maximum_tokens=17).clozes([record]))
    body = bodies[0]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("llama", 0.3, 17)
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant"] * 2 + ["user"]
    assert last_turn(body) == ("Who built it?", "A B")
    for turn, said in zip(body["messages"][::2], body["messages"][1::2]):     # the worked examples obey the rules
        assert said["content"].endswith(" " + turn["content"].split("\nAnswer: ")[1])


def test_an_instruction_never_changes_under_its_version():
    """Else replies to the old words would be taken for replies to the new: make a new version instead."""
    keys = {"v1": "ceeda76324cc2d4fda820313ba98b55b3a8f996ec437de35d0bb25a2c2a383a2"}
    record = records(1)[0]
    assert {version: ask_for(spec("http://any/v1", prompt=version), record).key for version in INSTRUCTIONS} == keys


def test_requests_at_once_stay_within_the_bound_and_reach_it(cache):
    five = threading.Barrier(5, timeout=15)      # the server answers five together, or none

    def script(number, body):
        five.wait()
        return good(number, body)

    with serving(script) as server:
        list(rewriter(server, cache, concurrency=5).clozes(records(40)))
    assert server.most_at_once == 5


def test_a_caller_who_stops_early_does_not_pay_for_all(cache):
    with serving(good) as server:
        stream = rewriter(server, cache, concurrency=2).clozes(records(100))
        assert next(stream) == clozes(records(1))[0]
        time.sleep(0.8)                      # busy with the first
        stream.close()
    assert len(server.questions) <= 12


# ------------------------------------------------------------------------------------------------------- replies
@pytest.mark.parametrize("said, reason", [
    (Say("The year of N0 was\nin year 0"), "several_lines"),
    (Say("It was in year 0, when N0 was founded"), "answer_not_at_end"),
    (Say("N0 was founded within year 0"), "answer_not_at_end"),       # the answer is a part of a word
    (Say("The founding of N0 was in ye", finish="length"), "truncated_reply"),
    (Say("N0 was founded in year 0", finish="length"), "truncated_reply"),
    (Say("", finish="content_filter"), "filtered_reply"),
    (Say(""), "empty_reply"), (Say(None), "empty_reply"), (Say(" \n "), "empty_reply"),
    (Say("in year 0"), "only_the_answer"), (Say("____"), "only_the_answer"),
    (Say("When was N0 founded? in year 0"), "still_a_question"),
    (Say("N0 was founded 'in year 0'"), "answer_not_at_end"),
])
def test_replies_that_are_no_cloze_are_kept_with_their_reason(cache, said, reason):
    with serving(at_first(said)) as server:
        endpoint = rewriter(server, cache, concurrency=1)
        bad, fine = endpoint.clozes(records(2))
        assert bad == Unusable("r0", reason, said.content or "") and [fine] == clozes(records(2))[1:]
        assert endpoint.bill["failed"] == 1 and len(server.questions) == 2
        again = rewriter(server, cache)
        assert list(again.clozes(records(2))) == [bad, fine]
    assert len(server.questions) == 2 and again.bill["cached"] == 2 and again.bill["failed"] == 1


@pytest.mark.parametrize("said", ["N0 was founded in year 0", "N0 was founded in year 0.", " N0 was founded  In Year 0\n",
                                  "N0 was founded _", "N0 was founded ____.", "N0 was founded [blank]"])
def test_replies_that_are_right(cache, said):
    with serving(at_first(said)) as server:
        assert list(rewriter(server, cache).clozes(records(1))) == ["N0 was founded"]


def test_letters_that_no_file_can_hold(cache):
    raw = '{"choices": [{"message": {"content": "N0 \\ud83d was\\u0000 founded in year 0"}}]}'
    with serving(lambda *_: Say(raw=raw)) as server:
        for _ in range(2):
            endpoint = rewriter(server, cache)
            assert list(endpoint.clozes(records(1))) == ["N0 ? was\x00 founded"]
            assert (endpoint.bill["tokens_in"], endpoint.bill["tokens_out"]) == (0, 0)      # none were counted
    assert len(server.questions) == 1


def test_a_record_without_an_answer_is_not_asked(cache):
    with serving(good) as server:
        found = list(rewriter(server, cache).clozes([Record("x", "d", "text", "Why?", ()), *records(1)]))
    assert found == [Unusable("x", "no_answer", "Why?"), *clozes(records(1))] and len(server.questions) == 1


@pytest.mark.parametrize("raw", ["{'not': json", "[]", '{"choices": []}', '{"choices": [{"message": "hm"}]}',
                                 '{"choices": [{"message": {"content": 3}}]}'])
def test_a_malformed_body_is_asked_for_again_then_costs_its_record_alone(cache, raw):
    def script(number, body):
        return Say(raw=raw) if last_turn(body)[1] == "in year 1" else good(number, body)

    with serving(script) as server:
        endpoint = rewriter(server, cache, concurrency=1)
        found = list(endpoint.clozes(records(3)))
        assert found[1] == Unusable("r1", "malformed_reply", raw) and [found[0], found[2]] == clozes(records(3))[::2]
        assert len(server.questions) == 5 and endpoint.bill["retries"] == 2
        list(rewriter(server, cache).clozes(records(1)))                      # in the cache
        with pytest.raises(ConfigError, match="answers, but not with a chat completion"):
            list(rewriter(server, cache).clozes(records(1, start=1)))         # nothing else has come from there


def test_one_malformed_body_is_forgiven(cache):
    with serving(at_first(Say(raw="<html>busy</html>"))) as server:
        assert list(rewriter(server, cache).clozes(records(1))) == clozes(records(1))


# ------------------------------------------------------------------------------------------------ trouble that passes
@pytest.mark.parametrize("trouble", [
    Say("overloaded", status=500), Say("starting", status=503), Say("slow", status=408), Say("many", status=429),
    Say(hang_up=True), Say("late", seconds=1.0),
])
def test_trouble_that_passes_is_tried_again(cache, trouble):
    with serving(at_first(trouble, trouble)) as server:
        slow = trouble.seconds > 0        # then a busy machine may be late once more
        endpoint = rewriter(server, cache, concurrency=1, timeout=0.7 if slow else 20.0, tries=9 if slow else 3)
        assert list(endpoint.clozes(records(2))) == clozes(records(2))
    assert endpoint.bill["requests"] == len(server.questions) == endpoint.bill["retries"] + 2
    assert endpoint.bill["retries"] == 2 or slow and endpoint.bill["retries"] > 2


@pytest.mark.parametrize("header, least, most", [
    ("0.4", 0.4, 5), ("date", 0.8, 5), ("nonsense", 0, 5), ("-5", 0, 5), ("Thu, 01 Jan 1998 00:00:00 GMT", 0, 5)])
def test_retry_after_is_obeyed(cache, header, least, most):
    if header == "date":       # whole seconds: between 1 and 2 from now
        header = format_datetime(datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2), usegmt=True)
    with serving(at_first(Say("many", status=429, headers={"Retry-After": header}))) as server:
        assert list(rewriter(server, cache).clozes(records(1))) == clozes(records(1))
    assert least <= server.times[1] - server.times[0] <= most


def test_a_server_that_wants_an_hour_stops_the_work(cache):
    with serving(lambda *_: Say("quota", status=429, headers={"Retry-After": "3600"})) as server:
        with pytest.raises(ConfigError, match="HTTP 429.*quota.*left alone for 3,600 s.*0 of the 1 replies wanted so far are kept"):
            list(rewriter(server, cache).clozes(records(1)))
    assert len(server.questions) == 1


def test_waits_double_vary_and_end(cache):
    client = endpoint_client.Client(endpoint_client.Sending.of(spec("http://127.0.0.1:9/v1"), 1.0))
    for attempt, base in ((1, 1), (2, 2), (3, 4), (20, endpoint_client.LONGEST_WAIT)):
        waits = [client._backoff(attempt) for _ in range(200)]
        assert 0.5 * base <= min(waits) < 0.7 * base and 1.3 * base < max(waits) <= 1.5 * base


# ------------------------------------------------------------------------------------------------ trouble that stays
@pytest.mark.parametrize("status, message", [
    (401, r"valid key \(HTTP 401\).*environment variable REWRITER_TEST_KEY; none is there"),
    (403, r"valid key \(HTTP 403\)"),
    (404, r"no model 'tiny' at http.*or no such address \(HTTP 404\)"),
    (400, "HTTP 400.*bad things.*rewriter.temperature"), (422, "HTTP 422"), (307, "HTTP 307"),
])
def test_a_refusal_is_not_tried_again_and_stops_the_work(cache, status, message):
    with serving(lambda *_: Say("bad things", status=status)) as server:
        with pytest.raises(ConfigError, match=message):
            list(rewriter(server, cache, concurrency=2).clozes(records(50)))
    assert len(server.questions) <= 4


def test_a_refusal_stops_the_others_at_once_and_what_is_on_its_way_is_kept(cache):
    def script(number, body):
        return Say(good(number, body), seconds=0.8) if last_turn(body)[1] == "in year 0" else Say("no", status=401)

    with serving(script) as server, pytest.raises(ConfigError, match="1 of the 9 replies wanted so far are kept"):
        list(rewriter(server, cache, concurrency=2).clozes(records(9)))
    assert len(server.questions) == 2


def test_connection_refused(cache):
    with serving(good) as server:
        pass
    with pytest.raises(ConfigError, match=r"no reply to question 'r\d' in 3 tries, the last time: no connection to "
                                          r"http://127.*0 of the 9 replies wanted so far are kept in .*replies.sqlite; run the same again"):
        list(rewriter(server, cache).clozes(records(9)))


def test_a_server_that_dies_half_way_and_a_second_run_that_asks_only_for_the_rest(cache):
    def script(number, body):
        if number > 13:
            return Say(hang_up=True)
        return good(number, body)

    with serving(script) as server:
        got = []
        with pytest.raises(ConfigError) as raised:
            for cloze in rewriter(server, cache).clozes(records(30)):
                got.append(cloze)
        assert "13 of the 30 replies wanted so far are kept" in str(raised.value) and got == clozes(records(30))[: len(got)]
        first = set(server.answered)
        assert len(first) == len(server.answered) == 13
    with serving(good) as second:
        endpoint = rewriter(second, cache)
        assert list(endpoint.clozes(records(30))) == clozes(records(30))
    assert len(second.questions) == 17 and not first & set(second.questions)
    assert endpoint.bill["cached"] == 13 and endpoint.bill["requests"] == 17 and endpoint.bill["tokens_in"] == 17 * 200


SERVER = """
import sys, time
from tests.tasks.rewriting.model_server import Say, good, question_of, serving
def script(number, body):
    print(question_of(body), flush=True)
    return Say(good(number, body), seconds=0.05)
with serving(script) as server:
    print(server.url, flush=True)
    time.sleep(120)
"""


def test_a_server_process_that_is_killed_and_another_that_takes_over(cache):
    servers = [subprocess.Popen([sys.executable, "-c", SERVER], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                                env=os.environ | {"PYTHONPATH": str(ROOT)}) for _ in range(2)]
    try:
        urls = [server.stdout.readline().strip() for server in servers]
        stream = Endpoint(spec(urls[0]), cache, first_wait=QUICK).clozes(records(40))
        got = [next(stream) for _ in range(10)]
        servers[0].kill()
        with pytest.raises(ConfigError, match="no connection to .* of the 40 replies wanted so far are kept") as raised:
            got += stream
        assert got == clozes(records(40))[: len(got)]
        kept = int(re.search(r"(\d+) of the 40", str(raised.value)).group(1))
        assert list(Endpoint(spec(urls[1]), cache).clozes(records(40))) == clozes(records(40))
    finally:
        for server in servers:
            server.kill()
    first, second = [server.communicate()[0].splitlines() for server in servers]
    assert 10 <= kept <= len(first) <= kept + 4 and len(second) == 40 - kept       # lost: at most those on their way


def test_settings_that_cannot_work_are_refused_before_any_request(cache, monkeypatch):
    for changes, message in [({"prompt": "v9"}, "no instruction 'v9'; there is v1"), ({"model": " "}, "rewriter.model"),
                             ({"url": "ftp://x/v1"}, "rewriter.url: got 'ftp://x/v1'"), ({"url": "x"}, "rewriter.url"),
                             ({"url": "https://me:pw@host/v1"}, "every manifest would show"),
                             ({"url": "https://host/v1?api_key=pw"}, "every manifest would show")]:
        with pytest.raises(SpecError, match=message) as raised:
            Endpoint(spec("http://127.0.0.1:9/v1").model_copy(update=changes), cache)
        assert "pw" not in str(raised.value)
    monkeypatch.setenv("REWRITER_TEST_KEY", "two words")
    with pytest.raises(ConfigError, match="REWRITER_TEST_KEY holds blanks") as raised:
        Endpoint(spec("http://127.0.0.1:9/v1"), cache)
    assert "two words" not in str(raised.value) and not cache.exists()


def test_a_cache_that_is_damaged_or_cannot_be_written(cache):
    cache.mkdir()
    (cache / "replies.sqlite").write_text("this is no database, but long enough to be taken for one" * 20)
    with serving(good) as server:
        with pytest.raises(ArtifactError, match="replies.sqlite cannot be used.*delete it: no result is lost"):
            list(rewriter(server, cache).clozes(records(1)))
        (cache.parent / "file").write_text("")
        with pytest.raises(ArtifactError, match="set REREAD_HOME"):
            list(rewriter(server, cache.parent / "file" / "cache").clozes(records(1)))
    assert not server.questions


# ------------------------------------------------------------------------------------------------------- the cache
def test_what_a_key_is_made_of(cache):
    with serving(good) as server:
        for changes in ({}, {"model": "other"}, {"temperature": 0.5}, {"maximum_tokens": 95}):
            for times in range(2):
                endpoint = rewriter(server, cache, **changes)
                list(endpoint.clozes(records(2)))
                assert endpoint.bill["cached"] == 2 * times
        other_answer = Record("r0", "d0", "", records(1)[0].question, ("1",))
        assert list(rewriter(server, cache).clozes([other_answer])) == clozes(records(1))
    assert len(server.questions) == 9


def test_the_home_is_where_replies_are_kept(home):
    with serving(good) as server:
        list(Endpoint(spec(server.url)).clozes(records(1)))
    assert (home / "cache" / "rewriting" / "replies.sqlite").is_file()
    assert not list((home / "cache" / "rewriting").glob("*.lock"))


def test_a_stage_that_asks_in_portions_has_one_bill(cache):
    with serving(lambda number, body: Say(hang_up=True) if number > 12 else good(number, body)) as server:
        endpoint = rewriter(server, cache, concurrency=1)
        first = endpoint.clozes(records(10))
        assert [next(first) for _ in range(10)] == clozes(records(10))
        del first                                                    # taken, but never to its end
        with pytest.raises(ConfigError, match="12 of the 20 replies wanted so far are kept"):
            list(endpoint.clozes(records(10, start=10)))
    assert endpoint.bill["requests"] == 12


def test_equal_questions_of_one_run_are_paid_for_once(cache):
    with serving(good) as server:
        endpoint = rewriter(server, cache)
        assert list(endpoint.clozes(records(3) * 3)) == clozes(records(3)) * 3
    assert len(server.questions) == 3 and (endpoint.bill["requests"], endpoint.bill["cached"]) == (3, 6)


def test_two_runs_at_once_pay_for_nothing_twice(cache):
    found, bills = {}, []
    with serving(lambda number, body: Say(good(number, body), seconds=0.02)) as server:
        def run(name, some):
            endpoint = rewriter(server, cache)
            found[name] = list(endpoint.clozes(some))
            bills.append(endpoint.bill)

        threads = [threading.Thread(target=run, args=(name, records(25, start))) for name, start in (("a", 0), ("b", 5))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {"a": clozes(records(25)), "b": clozes(records(25, 5))}
    assert len(server.questions) == len(set(server.questions)) == 30
    total = {name: bills[0][name] + bills[1][name] for name in bills[0]}
    assert (total["requests"], total["cached"], total["tokens_in"]) == (30, 20, 30 * 200)


PROCESS = """
import signal
import sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)      # a child of a background job is born deaf to Ctrl-C
from tasks.rewriting.endpoint import Endpoint
from tasks.rewriting.endpoint_prompts import INSTRUCTIONS, ask_for
from tests.tasks.rewriting.model_server import clozes, records, spec
sys.stdout.write("ready\\n"), sys.stdout.flush()
found = list(Endpoint(spec(sys.argv[1]), Path(sys.argv[2]), first_wait=0.01).clozes(records(40)))
assert found == clozes(records(40))
"""


def start(server, cache):
    return subprocess.Popen([sys.executable, "-c", PROCESS, server.url, str(cache)], cwd=ROOT, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.01)


def test_two_processes_at_once_pay_for_nothing_twice(cache):
    with serving(lambda number, body: Say(good(number, body), seconds=0.02)) as server:
        processes = [start(server, cache) for _ in range(2)]
        said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert len(server.questions) == len(set(server.questions)) == 40


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_or_interrupted_what_was_answered_is_kept(cache, how):
    with serving(lambda number, body: Say(good(number, body), seconds=0.05)) as server:
        process = start(server, cache)
        wait_for(lambda: len(server.answered) >= 10)
        began = time.monotonic()
        process.send_signal(how)
        _, said = process.communicate(timeout=30)
        assert process.returncode != 0 and time.monotonic() - began < 15
        before = list(server.questions)
        endpoint = rewriter(server, cache)
        assert list(endpoint.clozes(records(40))) == clozes(records(40))
    again = [question for question in server.questions[len(before):] if question in before]
    assert 10 <= len(before) < 40
    assert len(again) <= (4 if how == signal.SIGKILL else 0), said      # at most those on their way


# ------------------------------------------------------------------------------------------------------- the key
def everything(root) -> bytes:
    return b"".join(path.read_bytes() + str(path).encode() for path in root.rglob("*") if path.is_file())


def chain(error) -> str:
    """All that a report of an error could show, the locals of every frame with it."""
    parts = []
    while error is not None:
        parts += [str(error), repr(error), repr(vars(error))]
        frame = error.__traceback__
        while frame is not None:
            if "rewriting" in frame.tb_frame.f_code.co_filename and "test_" not in frame.tb_frame.f_code.co_filename:
                parts.append(repr(frame.tb_frame.f_locals))
            frame = frame.tb_next
        error = error.__cause__ or error.__context__
    return "".join(parts)


def echo(number, body):
    """A server that repeats the key wherever it can."""
    said = [Say(f"bad key {KEY}", status=500), Say(f"{KEY} is in year 0 and more {KEY}"), Say(raw=f"oops {KEY}"),
            Say(raw=f"oops {KEY}"), Say(raw=f"oops {KEY}"), Say(f"never {KEY}", status=401)]
    return said[min(number, len(said)) - 1]


def test_the_key_goes_into_the_header_and_nowhere_else(tmp_path, cache, monkeypatch, caplog, capfd):
    monkeypatch.setenv("REWRITER_TEST_KEY", KEY + "\n")
    caplog.set_level(logging.DEBUG)
    found = []
    with serving(echo) as server:
        endpoint = rewriter(server, cache, concurrency=1)
        with pytest.raises(ConfigError, match="environment variable REWRITER_TEST_KEY; the one there is refused") as raised:
            for each in endpoint.clozes(records(3)):
                found.append(each)
    assert [each.reason for each in found] == ["answer_not_at_end", "malformed_reply"] and "[key]" in found[0].detail
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    client = endpoint_client.Client(endpoint.sending)      # what a debugger shows, and what travels to other processes
    assert "sk-7f3QvX" not in repr(vars(client)) + repr(vars(client._connection()))
    assert b"sk-7f3QvX" not in pickle.dumps(endpoint.sending)
    shown = "".join(capfd.readouterr()) + caplog.text + chain(raised.value) + repr(found) + repr(vars(endpoint))
    assert "sk-7f3QvX" not in shown and "Authorization" not in chain(raised.value)
    assert b"sk-7f3QvX" not in everything(tmp_path) and b"[key] is in year 0" in everything(cache)


@pytest.mark.parametrize("said", [Say("no", status=500), Say(hang_up=True), Say("late", seconds=0.5)])
def test_no_failure_of_a_request_carries_the_key(cache, monkeypatch, said):
    monkeypatch.setenv("REWRITER_TEST_KEY", KEY)
    with serving(lambda *_: said) as server, pytest.raises(ConfigError) as raised:
        list(rewriter(server, cache, timeout=0.2, tries=2).clozes(records(2)))
    assert "sk-7f3QvX" not in chain(raised.value) and "secure" not in chain(raised.value)


def test_replies_are_kept_beside_the_store_that_asks(tmp_path, monkeypatch):
    monkeypatch.setenv("REREAD_HOME", str(tmp_path / "home"))
    with serving(lambda number, body: Say(good(number, body))) as server:
        endpoint = rewriter_for(spec(server.url), tmp_path / "store")
        assert list(endpoint.clozes(records(1))) == clozes(records(1))
    assert [path.parent for path in tmp_path.rglob("replies.sqlite")] == [tmp_path / "store" / "cache" / "rewriting"]
