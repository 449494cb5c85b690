"""A new home starts from a database that is migrated already, and only where that changes nothing else."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from flows.services import prefect_database, servers


@pytest.fixture
def template(tmp_path, monkeypatch):
    """A small database in the template's place."""
    path = tmp_path / "environment" / "template.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma journal_mode=wal")
        database.execute("create table alembic_version (version_num text)")
        database.execute("insert into alembic_version values ('head')")
        database.commit()
    monkeypatch.setattr(prefect_database, "template", lambda: path)
    for name in prefect_database.ELSEWHERE:
        monkeypatch.delenv(name, raising=False)
    return path


def revision(path):
    with closing(sqlite3.connect(path)) as database:
        return database.execute("select version_num from alembic_version").fetchone()[0]


def test_a_new_home_gets_a_copy(template, tmp_path, monkeypatch):
    home = tmp_path / "home" / "prefect"
    monkeypatch.setenv("PREFECT_HOME", str(home))
    servers.prefect(1)
    assert revision(home / "prefect.db") == "head"
    assert [path.name for path in home.iterdir()] == ["prefect.db"]


def test_a_database_that_is_there_stays(template, tmp_path):
    (tmp_path / "prefect.db").write_bytes(b"mine")
    assert not prefect_database.provide(tmp_path)
    prefect_database._copy(template, tmp_path / "prefect.db")           # another process was faster
    assert (tmp_path / "prefect.db").read_bytes() == b"mine"


@pytest.mark.parametrize("name", prefect_database.ELSEWHERE)
def test_nothing_where_prefect_has_another_database(template, tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "postgresql+asyncpg://somewhere/prefect")
    assert not prefect_database.provide(tmp_path / "home")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("damage", ["missing", "no database"])
def test_without_a_template_prefect_migrates_by_itself(template, tmp_path, damage):
    template.unlink() if damage == "missing" else template.write_bytes(b"no database at all" * 100)
    assert not prefect_database.provide(tmp_path / "home")
    assert not list(tmp_path.glob("home/*"))


def test_a_home_that_cannot_be_made_is_for_prefect_to_tell(template, tmp_path):
    (tmp_path / "file").touch()
    assert not prefect_database.provide(tmp_path / "file" / "prefect")


def test_a_template_can_be_read_where_nothing_can_be_written(template, tmp_path):
    copy = tmp_path / "copy.db"
    prefect_database._copy(template, copy)
    assert copy.read_bytes()[18:20] == b"\1\1"          # a write-ahead log needs two more files beside the database
    assert revision(copy) == "head"


def test_a_place_without_hard_links(template, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert prefect_database.provide(tmp_path / "home")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["prefect.db"]


def test_the_template_is_migrated_where_no_settings_lie(tmp_path, monkeypatch):
    (tmp_path / ".env").write_text("PREFECT_SERVER_DATABASE_CONNECTION_URL=postgresql+asyncpg://somewhere/prefect\n")
    monkeypatch.chdir(tmp_path)

    def upgrade(command, env, cwd=".", **_):
        assert not (Path(cwd) / ".env").exists()
        sqlite3.connect(Path(env["PREFECT_HOME"]) / "prefect.db").close()

    monkeypatch.setattr(subprocess, "run", upgrade)
    assert prefect_database.make(tmp_path / "made.db").is_file()


def test_the_template_is_of_this_release_of_prefect(monkeypatch):
    monkeypatch.setattr(prefect_database, "version", lambda package: {"prefect": "9.9"}[package])
    assert prefect_database.template().name == "prefect-9.9.db"


def contents(path):
    with closing(sqlite3.connect(path)) as database:
        made = sorted(database.execute("select name, sql from sqlite_master").fetchall(), key=str)
        tables = [name for name, in database.execute("select name from sqlite_master where type = 'table'")]
        filled = [name for name in tables if database.execute(f'select count(*) from "{name}"').fetchone()[0]]
    return made, filled, revision(path)


@pytest.mark.services
def test_prefect_finds_nothing_left_to_migrate(tmp_path):
    made, filled, _ = before = contents(prefect_database.make())
    assert "flow_run" in dict(made) and filled == ["alembic_version"]       # no key, no session: homes share nothing
    prefect_database.provide(tmp_path / "home")
    subprocess.run([sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"], check=True,
                   env=os.environ | {"PREFECT_HOME": str(tmp_path / "home")}, stdout=subprocess.DEVNULL)
    assert contents(tmp_path / "home" / "prefect.db") == before
