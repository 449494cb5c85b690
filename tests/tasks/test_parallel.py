"""The same results, in order, with and without Ray; errors as they were raised; bounded work ahead.

All tests that need Ray in tasks/ are here, so that it is started once.
"""

import itertools
import time
from types import SimpleNamespace

import pytest

from storage.errors import CorpusError
from tasks import tokenise
from tasks.deduplicate import deduplicate
from tasks.parallel import parallel_map
from tests.tasks.test_deduplicate import family
from tests.tasks.test_tokenise import file_hashes, spec, write_documents


def _slow_square(number):
    time.sleep(0.05 * (3 - number % 4))
    return number * number


def _refuse(number):
    if number == 2:
        raise CorpusError("file x.jsonl, record 2: not JSON")
    return number


@pytest.fixture(scope="module")
def ray_here():
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield ray
    ray.shutdown()


def test_serial_is_lazy_and_ordered():
    seen = []
    results = parallel_map(lambda k: seen.append(k) or k, itertools.count())
    assert [next(results) for _ in range(3)] == [0, 1, 2] and seen == [0, 1, 2]


def test_serial_error_reaches_the_caller():
    with pytest.raises(CorpusError, match="x.jsonl, record 2"):
        list(parallel_map(_refuse, range(4)))


@pytest.mark.services
def test_ray_gives_the_same_in_the_same_order(ray_here):
    assert list(parallel_map(_slow_square, range(8), in_flight=3)) == [k * k for k in range(8)]


@pytest.mark.services
def test_ray_error_reaches_the_caller_as_it_was_raised(ray_here):
    with pytest.raises(CorpusError, match="^file x.jsonl, record 2: not JSON$") as raised:
        list(parallel_map(_refuse, range(4)))
    assert type(raised.value) is CorpusError


@pytest.mark.services
def test_ray_never_runs_further_ahead_than_asked(ray_here):
    drawn = []

    def items():
        for k in itertools.count():
            drawn.append(k)
            yield k

    results = parallel_map(_refuse, items(), in_flight=2)
    assert [next(results) for _ in range(2)] == [0, 1]
    results.close()
    assert len(drawn) <= 5


@pytest.mark.services
def test_shards_and_duplicates_are_the_same_with_ray(ray_here, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenise, "GROUP_CHARACTERS", 300)
    documents, texts = write_documents(tmp_path), family(seed=3)
    tokenise.build(spec(), documents, tmp_path / "ray")
    with_ray = deduplicate(texts)
    monkeypatch.setattr("tasks.parallel.sys", SimpleNamespace(modules={}))     # as if Ray had never been imported
    tokenise.build(spec(), documents, tmp_path / "serial")
    assert file_hashes(tmp_path / "serial") == file_hashes(tmp_path / "ray")
    assert deduplicate(texts) == with_ray
