"""Where things are kept."""

from pathlib import Path

import pytest

from storage.errors import ArtifactError
from storage.home import absolute, home, local_home


def test_the_home_is_a_folder_here_unless_the_environment_says_otherwise(tmp_path, monkeypatch):
    monkeypatch.delenv("REREAD_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    assert home() == f"{tmp_path}/.reread" and local_home() == tmp_path / ".reread"
    monkeypatch.setenv("REREAD_HOME", "~/x/")
    assert home() == str(Path.home() / "x")
    monkeypatch.setenv("REREAD_HOME", "s3://bucket/runs/")
    assert home() == "s3://bucket/runs"


def test_what_cannot_live_at_a_url_has_a_local_place_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("REREAD_CACHE", str(tmp_path))
    places = {local_home(root) for root in ("s3://bucket/a", "s3://bucket/a/", "s3://bucket/b")}
    assert len(places) == 2 and all(place.parent == tmp_path for place in places)
    monkeypatch.delenv("REREAD_CACHE")
    assert local_home("s3://bucket/a").is_relative_to(Path.home() / ".cache" / "reread")


def test_a_bare_scheme_keeps_its_slashes():
    assert absolute("memory://") == "memory://"


def test_a_folder_that_is_gone_is_told_unless_the_home_is_absolute(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert absolute("/somewhere") == "/somewhere"
    with pytest.raises(ArtifactError, match="the folder that this was started in is gone.*REREAD_HOME"):
        absolute(".reread")
