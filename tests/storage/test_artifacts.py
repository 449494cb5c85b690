"""Artifacts: complete or absent, made once, and what is said when they cannot be made or trusted."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from storage.artifacts import Manifest, Store, artifact_id, file_sha256
from storage.errors import ArtifactError

SPEC, INPUTS, CODE = {"rows": 3, "name": "ü"}, {"corpus": "corpus-0000000000000000"}, "c0de"


def build(folder: Path) -> dict:
    (folder / "train").mkdir(exist_ok=True)
    (folder / "train" / "00000.arrow").write_bytes(b"x" * 1000)
    (folder / "notes.txt").write_text("hello")
    return {"rows": 3}


def refuse(folder: Path) -> dict:
    raise AssertionError("this must not be built")


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "home")


# ------------------------------------------------------------------------------------------------------ identity
def test_the_id_follows_from_kind_spec_inputs_and_code():
    known = artifact_id("shards", SPEC, INPUTS, CODE)
    assert known == "shards-e9bd0cdac81247e0"      # frozen: another value orphans everybody's artifacts
    assert artifact_id("shards", dict(reversed(SPEC.items())), INPUTS, CODE) == known
    others = {artifact_id("rows", SPEC, INPUTS, CODE), artifact_id("shards", {**SPEC, "rows": 4}, INPUTS, CODE),
              artifact_id("shards", SPEC, {}, CODE), artifact_id("shards", SPEC, INPUTS, "other"), known}
    assert len(others) == 5


# ----------------------------------------------------------------------------------------------------- producing
def test_produces_once_and_describes_what_it_made(store):
    made = store.produce("shards", SPEC, INPUTS, CODE, build, version="7")
    assert store.produce("shards", SPEC, INPUTS, CODE, refuse) == made == artifact_id("shards", SPEC, INPUTS, CODE)
    manifest = store.manifest(made)
    assert (manifest.kind, manifest.id, manifest.spec, manifest.inputs) == ("shards", made, SPEC, INPUTS)
    assert (manifest.code, manifest.version, manifest.counts) == (CODE, "7", {"rows": 3})
    assert [(entry["path"], entry["size"]) for entry in manifest.files] == [("notes.txt", 5), ("train/00000.arrow", 1000)]
    assert manifest.files[0]["sha256"] == file_sha256(store.path(made) / "notes.txt")
    assert {"python", "torch", "pyarrow"} <= set(manifest.libraries)
    assert manifest.seconds >= 0 and manifest.created.startswith("20")
    assert (store.path(made) / "notes.txt").read_text() == "hello"
    assert not any((store.folder / "work").iterdir())
    store.verify(made)


def test_scratch_files_do_not_become_part_of_it(store):
    def messy(folder):
        build(folder)
        (folder / ".cursor").write_text("12")
        (folder / "train" / "00001.arrow.partial").write_text("half")
        (folder / ".cache").mkdir()
        (folder / ".cache" / "x").write_text("x")
    made = store.produce("shards", SPEC, INPUTS, CODE, messy)
    found = {path.relative_to(store.path(made)).as_posix() for path in store.path(made).rglob("*") if path.is_file()}
    assert found == {"manifest.json", "notes.txt", "train/00000.arrow"}
    assert len(store.manifest(made).files) == 2


def test_an_exception_leaves_no_manifest_and_the_next_attempt_finds_its_folder(store):
    def fails(folder):
        (folder / "part").write_text("1")
        raise RuntimeError("out of patience")
    with pytest.raises(RuntimeError, match="patience"):
        store.produce("shards", SPEC, INPUTS, CODE, fails)
    assert not store.exists(artifact_id("shards", SPEC, INPUTS, CODE)) and store.list() == []

    def resumes(folder):
        assert (folder / "part").read_text() == "1"
    assert store.exists(store.produce("shards", SPEC, INPUTS, CODE, resumes))


def test_an_unfinished_folder_under_the_final_name_is_replaced(store):
    known = artifact_id("shards", SPEC, INPUTS, CODE)
    debris = store.folder / "artifacts" / known / "old.bin"
    debris.parent.mkdir(parents=True)
    debris.write_text("from a copy that was cut short")
    assert not store.exists(known)
    store.produce("shards", SPEC, INPUTS, CODE, build)
    assert not debris.exists() and store.exists(known)


def test_opening_and_reading_a_store_creates_nothing(tmp_path):
    store = Store(tmp_path / "home")
    assert store.list() == [] and not store.exists("rows-0123456789abcdef")
    assert not (tmp_path / "home").exists()


# --------------------------------------------------------------------------------------------------------- kills
KILLED = textwrap.dedent("""
    import os, signal, sys
    from pathlib import Path
    from storage import artifacts
    from storage.artifacts import Store

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def build(folder):
        with open(Path(sys.argv[1]) / "builds", "a") as file:
            file.write("b")
        (folder / "first").write_text("1")
        if point == "during the build":
            die()
        (folder / "second").write_text("2")
        return {"n": 2}

    point = sys.argv[2]
    if point == "after the build":
        real = artifacts.write_atomically
        artifacts.write_atomically = lambda path, text: die() if path.name == ".built.json" else real(path, text)
    elif point == "before the manifest":
        artifacts.write_manifest = die
    elif point == "inside the manifest":
        def half(folder, manifest):
            (folder / "manifest.json.partial").write_text('{"kind": "sh')
            die()
        artifacts.write_manifest = half
    elif point == "before the rename":
        os.rename = die
    elif point == "after the rename":
        artifacts._sync = die
    print(Store(Path(sys.argv[1]) / "home").produce("shards", {"a": 1}, {}, "code", build))
""")


def run_killed(folder: Path, point: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", KILLED, str(folder), point], capture_output=True, text=True,
                          cwd=Path(__file__).resolve().parents[2], check=False)


@pytest.mark.parametrize("point, complete, builds", [
    ("during the build", False, 2), ("after the build", False, 2), ("before the manifest", False, 1),
    ("inside the manifest", False, 1), ("before the rename", False, 1), ("after the rename", True, 1)])
def test_a_kill_leaves_nothing_that_looks_complete_and_the_next_run_ends_the_same(tmp_path, point, complete, builds):
    known = artifact_id("shards", {"a": 1}, {}, "code")
    assert run_killed(tmp_path, point).returncode == -9
    store = Store(tmp_path / "home")
    assert store.exists(known) is complete and len(store.list()) == complete
    again = run_killed(tmp_path, "nowhere")
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == known
    store.verify(known)
    assert [entry["path"] for entry in store.manifest(known).files] == ["first", "second"]
    assert store.manifest(known).counts == {"n": 2}
    assert (tmp_path / "builds").read_text() == "b" * builds          # finished work is not done twice
    assert [path.name for path in store.folder.rglob("manifest.json*")] == ["manifest.json"]


def test_files_changed_after_a_kill_are_built_again(tmp_path):
    assert run_killed(tmp_path, "before the rename").returncode == -9
    work = tmp_path / "home" / "work" / artifact_id("shards", {"a": 1}, {}, "code")
    (work / "second").write_text("cut")
    assert run_killed(tmp_path, "nowhere").returncode == 0
    assert (tmp_path / "builds").read_text() == "bb"


def test_old_work_is_cleaned_up_unless_somebody_is_at_it(store):
    def fails(folder):
        (folder / "part").write_text("1")
        raise RuntimeError
    names = []
    for i in range(3):
        with pytest.raises(RuntimeError):
            store.produce("rows", {"i": i}, {}, "c", fails)
        names.append(artifact_id("rows", {"i": i}, {}, "c"))
    for name in names[:2]:
        for path in (store.folder / "work" / name / "part", store.folder / "work" / name):
            os.utime(path, (time.time() - 1000,) * 2)
    with store._lock(names[0]):
        assert store.clean(older_than=500) == [names[1]]
    assert sorted(path.name for path in (store.folder / "work").iterdir()) == sorted([names[0], names[2]])
    assert store.clean(older_than=500) == [names[0]] and store.clean(older_than=-1) == [names[2]]


# --------------------------------------------------------------------------------------------- several producers
def test_a_second_process_waits_and_adopts(tmp_path):
    script = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from storage.artifacts import Store
        def build(folder):
            with open(Path(sys.argv[1]) / "builds", "a") as file:
                file.write("b")
            time.sleep(0.5)
            (folder / "x").write_text("1")
        print(Store(Path(sys.argv[1]) / "home").produce("shards", {}, {}, "code", build))
    """)
    running = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True,
                                cwd=Path(__file__).resolve().parents[2]) for _ in range(3)]
    ids = {process.communicate()[0].strip() for process in running}
    assert ids == {artifact_id("shards", {}, {}, "code")} and (tmp_path / "builds").read_text() == "b"
    assert not list((tmp_path / "home" / "work").iterdir())


def test_threads_of_one_process_exclude_each_other(store):
    calls, made = [], []

    def slow(folder):
        calls.append(1)
        time.sleep(0.2)
    threads = [threading.Thread(target=lambda: made.append(store.produce("rows", {}, {}, "c", slow))) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(calls) == 1 and len(made) == 3 and len(set(made)) == 1


def test_a_lock_file_removed_by_its_holder_while_we_took_it_is_not_a_lock(store, monkeypatch):
    lock = store.folder / "work" / f"{artifact_id('rows', {}, {}, 'c')}.lock"
    real, calls = fcntl.flock, []

    def late(file, how):
        if not calls:
            lock.unlink()
        calls.append(how)
        real(file, how)
    monkeypatch.setattr(fcntl, "flock", late)

    def sees_its_lock(folder):
        assert lock.is_file()
    store.produce("rows", {}, {}, "c", sees_its_lock)
    assert calls.count(fcntl.LOCK_EX | fcntl.LOCK_NB) == 2 and not lock.exists()


# -------------------------------------------------------------------------------------------------------- damage
def test_a_missing_artifact_says_what_to_do(store):
    with pytest.raises(ArtifactError, match=r"no complete artifact rows-0123456789abcdef under .*home.*run the stage"):
        store.manifest("rows-0123456789abcdef")
    with pytest.raises(ArtifactError, match="not an artifact id"):
        store.path("../../etc")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"kind": "shards"}', "\x00\x01"])
def test_a_damaged_manifest_is_named_with_its_remedy(store, content):
    made = store.produce("shards", SPEC, INPUTS, CODE, build)
    path = store.path(made) / "manifest.json"
    path.write_text(content)
    with pytest.raises(ArtifactError, match=f"{path} is damaged .*delete its folder and run the stage again"):
        store.manifest(made)
    assert store.list() == []


def test_a_manifest_of_another_artifact_is_refused(store):
    made = store.produce("shards", SPEC, INPUTS, CODE, build)
    path = store.path(made) / "manifest.json"
    path.write_text(path.read_text().replace(made, "shards-0123456789abcdef"))
    with pytest.raises(ArtifactError, match="belongs to shards-0123456789abcdef"):
        store.path(made)


def test_verify_names_the_file_that_differs(store):
    made = store.produce("shards", SPEC, INPUTS, CODE, build)
    file = store.path(made) / "train" / "00000.arrow"
    file.write_bytes(b"x" * 500 + b"y" + b"x" * 499)
    with pytest.raises(ArtifactError, match=f"{file} has sha256 .*its manifest says"):
        store.verify(made)
    file.write_bytes(b"x")
    with pytest.raises(ArtifactError, match="has 1 bytes, its manifest says 1000"):
        store.verify(made)
    file.unlink()
    with pytest.raises(ArtifactError, match="is missing"):
        store.verify(made)


# ---------------------------------------------------------------------------------------------- full or read-only
def test_a_full_disk_is_one_clear_error(store):
    def fill(folder):
        with open("/dev/full", "w") as file:      # every write to it fails as a full disk does
            file.write("x")
    with pytest.raises(ArtifactError, match=f"cannot write under {store.folder}: No space left.*REREAD_HOME"):
        store.produce("shards", SPEC, INPUTS, CODE, fill)
    assert store.list() == []


def test_a_home_that_is_a_file_is_one_clear_error(tmp_path):
    (tmp_path / "home").write_text("not a folder")
    with pytest.raises(ArtifactError, match="cannot write under .*home: .*REREAD_HOME"):
        Store(tmp_path / "home").produce("shards", SPEC, INPUTS, CODE, build)


def test_a_read_only_home_is_one_clear_error(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    if os.access(home, os.W_OK):                  # root may write anywhere but into the kernel's own folders
        home = Path("/sys/reread")
    with pytest.raises(ArtifactError, match=f"cannot write under {home}: .*REREAD_HOME"):
        Store(home).produce("shards", SPEC, INPUTS, CODE, build)


def test_errors_of_the_build_itself_pass_through(store):
    def misses(folder):
        open("/nonexistent/input")
    with pytest.raises(FileNotFoundError) as caught:
        store.produce("shards", SPEC, INPUTS, CODE, misses)
    assert caught.value.errno == errno.ENOENT


# --------------------------------------------------------------------------------------------------------- speed
def test_thirty_artifacts_are_checked_in_milliseconds(store):
    made = [store.produce("scores", {"i": i}, {}, CODE, lambda folder: None) for i in range(30)]
    began = time.process_time()
    assert all(store.exists(identifier) for identifier in made)
    checked = time.process_time() - began
    assert len([store.manifest(identifier) for identifier in made]) == 30
    assert checked < 0.01 and time.process_time() - began < 0.05
    assert sorted(manifest.id for manifest in store.list("scores")) == sorted(made)
    assert store.list("rows") == []


# ---------------------------------------------------------------------------------------------------------- URLs
@pytest.fixture(params=["file", "memory"])
def remote(request, tmp_path, monkeypatch) -> Store:
    monkeypatch.setenv("REREAD_CACHE", str(tmp_path / "cache"))
    return Store(f"file://{tmp_path}/remote" if request.param == "file" else f"memory://{tmp_path.name}")


def test_a_url_holds_artifacts_that_another_machine_can_read(remote, tmp_path, monkeypatch):
    made = remote.produce("shards", SPEC, INPUTS, CODE, build)
    monkeypatch.setenv("REREAD_CACHE", str(tmp_path / "another machine"))
    other = Store(remote.root)
    assert other.exists(made) and other.produce("shards", SPEC, INPUTS, CODE, refuse) == made
    assert [manifest.id for manifest in other.list()] == [made]
    assert not (tmp_path / "another machine" / "artifacts").exists()
    assert (other.path(made) / "train" / "00000.arrow").read_bytes() == b"x" * 1000
    other.verify(made)


def test_an_upload_cut_short_is_not_complete_and_is_finished_later(remote, monkeypatch):
    files, root = remote.mirror._open()
    real, calls = files.put_file, []

    def breaks(local, place, **options):
        calls.append(place)
        if len(calls) == 2:
            raise OSError(errno.EIO, "connection lost")
        real(local, place, **options)
    monkeypatch.setattr(files, "put_file", breaks)
    with pytest.raises(OSError, match="connection lost"):
        remote.produce("shards", SPEC, INPUTS, CODE, build)
    assert not remote.exists(artifact_id("shards", SPEC, INPUTS, CODE)) and remote.list() == []
    monkeypatch.setattr(files, "put_file", real)
    assert remote.exists(remote.produce("shards", SPEC, INPUTS, CODE, refuse))


def test_a_download_is_checked(remote, tmp_path, monkeypatch):
    made = remote.produce("shards", SPEC, INPUTS, CODE, build)
    files, root = remote.mirror._open()
    place = next(path for path in files.find(root) if path.endswith("notes.txt"))
    files.pipe_file(place, b"hellO")
    monkeypatch.setenv("REREAD_CACHE", str(tmp_path / "another machine"))
    with pytest.raises(ArtifactError, match="notes.txt has sha256"):
        Store(remote.root).path(made)
    files.rm(place)
    with pytest.raises(ArtifactError, match="lacks notes.txt"):
        Store(remote.root).path(made)


def test_a_missing_remote_artifact_and_an_unknown_scheme_are_named(remote, tmp_path, monkeypatch):
    with pytest.raises(ArtifactError, match="no complete artifact rows-0123456789abcdef at"):
        remote.path("rows-0123456789abcdef")
    with pytest.raises(ArtifactError, match="REREAD_HOME 'nosuch://x' cannot be opened"):
        Store("nosuch://x").exists("rows-0123456789abcdef")


def test_a_store_can_be_sent_to_a_worker(remote):
    import pickle

    made = remote.produce("shards", SPEC, INPUTS, CODE, build)
    assert pickle.loads(pickle.dumps(remote)).exists(made)


def test_a_manifest_keeps_fields_it_does_not_know():
    known = Manifest(kind="a", id="a-1", spec={}, inputs={}, code="", version="1", libraries={}, git_commit=None,
                     files=[], counts={}, seconds=0, created="", later="x")
    assert json.loads(known.model_dump_json())["later"] == "x"
