"""Pruning a store: what stays, and that nothing half-deleted ever looks complete."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from storage import pruning
from storage.artifacts import Store, artifact_id
from storage.pruning import ARTIFACT, DEBRIS, DELETED, WORK, unreferenced

LATER = 4e9          # a time at which all of today's artifacts are old


def write(folder) -> None:
    (folder / "data").write_bytes(b"x" * 100)


def chain(store: Store, name: str) -> tuple[str, str, str]:
    """A corpus, rows made from it, a checkpoint made from those."""
    corpus = store.produce("corpus", {"name": name}, {}, "c", write)
    rows = store.produce("rows", {}, {"corpus": corpus}, "c", write)
    return corpus, rows, store.produce("checkpoint", {}, {"rows": rows}, "c", write)


def gone(store: Store, referred=(), before=LATER, kinds=()) -> set[str]:
    return {one.name for one in unreferenced(store, store.list(), referred, before, kinds)}


@pytest.fixture(params=["folder", "file", "memory"])
def store(request, tmp_path, monkeypatch) -> Store:
    monkeypatch.setenv("REREAD_CACHE", str(tmp_path / "cache"))
    place = {"folder": tmp_path / "home", "file": f"file://{tmp_path}/there", "memory": f"memory://prune-{os.getpid()}"}
    yield Store(place[request.param])
    if request.param == "memory":
        import fsspec

        fsspec.filesystem("memory").rm(f"/prune-{os.getpid()}", recursive=True)


def test_what_is_referred_to_stays_with_all_behind_it(store):
    first, second = chain(store, "a"), chain(store, "b")
    assert gone(store) == {*first, *second}
    assert gone(store, referred=[first[2]]) == set(second)
    assert gone(store, referred=[first[1]]) == {first[2], *second}
    assert gone(store, kinds=["checkpoint"]) == set(), "what kept checkpoints were made from is kept"
    assert gone(store, referred=["corpus-0123456789abcdef"]) == {*first, *second}


def test_what_only_a_spec_names_stays(store):
    corpus = store.produce("corpus", {}, {}, "c", write)
    prompts = store.produce("prompts", {"tokenizer": f"of {corpus}, by its id"}, {}, "c", write)
    assert gone(store, referred=[prompts]) == set()


def test_an_id_inside_a_longer_word_is_mentioned():
    text = "w/best-checkpoint-0123456789abcdef,7rows-0123456789abcde0 rows-0123456789abcde"
    assert {"checkpoint-0123456789abcdef", "rows-0123456789abcde0"} <= pruning.mentioned(text)


def test_what_was_made_or_used_lately_stays(tmp_path):
    store = Store(tmp_path / "home")
    corpus, rows, checkpoint = chain(store, "a")
    for name in (corpus, rows, checkpoint):
        manifest = store.folder / "artifacts" / name / "manifest.json"
        manifest.write_text(manifest.read_text().replace(store.manifest(name).created, "2020-01-01T00:00:00+00:00"))
        os.utime(manifest.parent, (1.6e9, 1.6e9))
    lately = time.time() - 60
    assert gone(store, before=lately) == {corpus, rows, checkpoint}
    store.path(rows)
    assert gone(store, before=lately) == {checkpoint}, "used now, and what it was made from"


def test_the_derived_goes_first_and_all_of_it_goes(store):
    corpus, rows, checkpoint = chain(store, "a")
    kept = store.produce("corpus", {"name": "kept"}, {}, "c", write)
    waste = unreferenced(store, store.list(), [kept], LATER)
    assert all(one.what == ARTIFACT and one.bytes == 100 for one in waste)
    assert [one.name for one in waste] == [checkpoint, rows, corpus], "made within one second, and derived first"
    assert [one.name for one in pruning.remove(store, waste)] == [one.name for one in waste]
    assert [one.id for one in store.list()] == [kept]
    assert not any(store.exists(name) for name in (corpus, rows, checkpoint))
    if store.mirror:
        assert store.mirror.names() == [kept]
    assert sorted(path.name for path in (store.folder / "artifacts").iterdir()) == [kept]
    assert not (store.folder / pruning.TRASH).exists() and pruning.leftovers(store, LATER) == []
    assert store.produce("corpus", {"name": "a"}, {}, "c", write) == corpus and store.exists(corpus)


def test_what_a_stage_at_work_reads_and_makes_stays(store):
    corpus, rows, checkpoint = chain(store, "a")
    begun, go = threading.Event(), threading.Event()

    def slow(folder):
        write(folder)
        begun.set()
        assert go.wait(20)
    thread = threading.Thread(target=store.produce, args=("scores", {}, {"checkpoint": checkpoint}, "c", slow))
    thread.start()
    assert begun.wait(20)
    try:
        assert gone(store) == set()
        assert pruning.at_work(store) == {checkpoint, artifact_id("scores", {}, {"checkpoint": checkpoint}, "c")}
        assert pruning.leftovers(store, LATER) == []
    finally:
        go.set()
        thread.join()
    assert gone(store) == {corpus, rows, checkpoint, artifact_id("scores", {}, {"checkpoint": checkpoint}, "c")}


def test_a_stage_that_starts_between_the_list_and_the_removal_keeps_its_inputs(store):
    corpus, rows, checkpoint = chain(store, "a")
    waste = unreferenced(store, store.list(), [], LATER)
    removed = []

    def build(folder):
        removed.extend(one.name for one in pruning.remove(store, waste))
        assert (store.path(rows) / "data").is_file()
        write(folder)
    store.produce("rows", {"more": 1}, {"rows": rows}, "c", build)
    assert set(removed) == {corpus, checkpoint} and store.exists(rows)


def test_what_came_into_use_after_the_list_stays(tmp_path):
    store = Store(tmp_path / "home")
    corpus, rows, checkpoint = chain(store, "a")
    waste = unreferenced(store, store.list(), [], LATER)
    time.sleep(0.02)
    store.path(rows)
    assert {one.name for one in pruning.remove(store, waste)} == {corpus, checkpoint}


def test_two_prunings_at_once_remove_each_thing_once(store):
    for name in "abcdefgh":
        chain(store, name)
    waste, removed = unreferenced(store, store.list(), [], LATER), []
    assert len(waste) == 24
    threads = [threading.Thread(target=lambda: removed.extend(pruning.remove(Store(store.root), waste))) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(one.name for one in removed) == sorted(one.name for one in waste) and store.list() == []


@pytest.mark.parametrize("call", ["os.rename", "shutil.rmtree"])
def test_a_kill_in_the_middle_leaves_whole_artifacts_or_none(tmp_path, call):
    store = Store(tmp_path / "home")
    chain(store, "a")
    script = textwrap.dedent(f"""
        import os, shutil, sys
        from storage import pruning
        from storage.artifacts import Store
        real, calls = {call}, []
        def dies(path, *rest, **more):
            calls.append(path)
            if len(calls) == 2:
                if "rmtree" in {call!r}:
                    os.unlink(os.path.join(path, "data"))
                os._exit(9)
            return real(path, *rest, **more)
        {call} = dies
        store = Store(sys.argv[1])
        list(pruning.remove(store, pruning.unreferenced(store, store.list(), [], 4e9)))
    """)
    assert subprocess.run([sys.executable, "-c", script, store.root]).returncode == 9
    for manifest in store.list():
        store.verify(manifest.id)
    left = pruning.leftovers(store, 0)
    assert {one.what for one in left} == ({DELETED} if "rmtree" in call else set())
    waste = [*unreferenced(store, store.list(), [], LATER), *pruning.leftovers(store, LATER)]
    assert {one.name for one in pruning.remove(store, waste)} == {one.name for one in waste}
    assert store.list() == [] and not (store.folder / pruning.TRASH).exists()


def test_at_a_url_the_manifest_goes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("REREAD_CACHE", str(tmp_path / "cache"))
    store = Store(f"file://{tmp_path}/there")
    corpus = store.produce("corpus", {}, {}, "c", write)
    files, root = store.mirror._open()
    monkeypatch.setattr(type(files), "rm", _only_the_first(type(files).rm))
    with pytest.raises(ConnectionError):
        store.mirror.remove(corpus)
    assert not store.exists(corpus) and files.exists(f"{root}/{corpus}")
    monkeypatch.undo()
    monkeypatch.setenv("REREAD_CACHE", str(tmp_path / "cache"))
    shutil.rmtree(store.folder / "artifacts")
    [left] = pruning.leftovers(store, LATER)
    assert (left.what, left.kind, left.name, left.bytes) == (DEBRIS, "unfinished upload", corpus, 100)
    assert pruning.leftovers(store, time.time() - 60) == [], "it may still be under way"
    assert [one.name for one in pruning.remove(store, [left])] == [corpus] and not files.exists(f"{root}/{corpus}")


def _only_the_first(real):
    calls = []

    def rm(self, *given, **more):
        calls.append(1)
        if len(calls) > 1:
            raise ConnectionError
        return real(self, *given, **more)
    return rm


def test_work_that_nobody_is_at_is_a_leftover(tmp_path):
    store = Store(tmp_path / "home")

    def fails(folder):
        write(folder)
        raise RuntimeError
    with pytest.raises(RuntimeError):
        store.produce("rows", {}, {}, "c", fails)
    (store.folder / "artifacts" / "rows-0123456789abcdef").mkdir(parents=True)
    assert pruning.leftovers(store, time.time() - 60) == []
    left = pruning.leftovers(store, LATER)
    assert {(one.what, one.bytes) for one in left} == {(WORK, 100), (DEBRIS, 0)}
    with store._lock(left[0].name):
        assert [one.what for one in pruning.remove(store, left)] == [DEBRIS]
    assert [one.what for one in pruning.remove(store, left)] == [WORK]
    assert list((store.folder / "work").iterdir()) == [] == list((store.folder / "artifacts").iterdir())


def test_unfinished_work_that_a_run_refers_to_stays(tmp_path):
    """A training that was killed goes on where its folder stands, whenever that is."""
    store = Store(tmp_path / "home")

    def killed(folder):
        write(folder)
        raise RuntimeError
    for name in "ab":
        with pytest.raises(RuntimeError):
            store.produce("checkpoint", {"name": name}, {}, "c", killed)
    going_on = artifact_id("checkpoint", {"name": "a"}, {}, "c")
    assert {one.name for one in pruning.leftovers(store, LATER, [going_on])} == {
        artifact_id("checkpoint", {"name": "b"}, {}, "c")}
    assert len(pruning.leftovers(store, LATER)) == 2


def test_a_link_in_place_of_a_folder_goes_and_what_it_shows_stays(tmp_path):
    store = Store(tmp_path / "home")
    corpus = store.produce("corpus", {}, {}, "c", write)
    place, elsewhere = store.folder / "artifacts" / corpus, tmp_path / "large disk"
    shutil.move(place, elsewhere)
    place.symlink_to(elsewhere)
    waste = unreferenced(store, store.list(), [], LATER)
    assert [one.name for one in pruning.remove(store, waste)] == [corpus] and store.list() == []
    assert (elsewhere / "data").is_file() and pruning.leftovers(store, LATER) == []


def test_what_cannot_be_deleted_is_not_said_to_be_gone(tmp_path, monkeypatch):
    store = Store(tmp_path / "home")
    corpus = store.produce("corpus", {}, {}, "c", write)
    waste = unreferenced(store, store.list(), [], LATER)
    monkeypatch.setattr(shutil, "rmtree", lambda *given, **more: None)
    assert list(pruning.remove(store, waste)) == [] and store.list() == []
    monkeypatch.undo()
    [left] = pruning.leftovers(store, LATER)
    assert left.what == DELETED and left.name.startswith(corpus)
    assert list(pruning.remove(store, [left])) == [left]
