"""Passwords in addresses."""

from __future__ import annotations

import io
import logging

import pytest

from storage.logs import configure_logging, get
from storage.masked import masked, parted


@pytest.mark.parametrize("text, shown", [
    ("at http://me:secret@host:1/x, see", "at http://me:***@host:1/x, see"),
    ("postgresql+psycopg2://u:a/b@h/d", "postgresql+psycopg2://u:***@h/d"),
    ("http://u:p@ss@h/x and http://v:q@h", "http://u:***@h/x and http://v:***@h"),
    ("redis://:secret@h", "redis://:***@h"),
    *[(same, same) for same in (
        "http://127.0.0.1:5050/#/models/quick@best", "models:/quick@best-tiny", "postgresql://host:5432/db, mail a@b",
        "http://host:80/a, u:b@c", "s3://bucket/a@b", "10:20 a@b")]])
def test_passwords_are_hidden_and_nothing_else(text, shown):
    assert masked(text) == shown


@pytest.mark.parametrize("url, place, who", [
    ("http://me:se%20cret@host:1/x", "http://host:1/x", "me:se cret"), ("http://host/x@y", "http://host/x@y", None),
    ("http://[", "http://[", None)])
def test_an_address_and_who_asks(url, place, who):
    assert parted(url) == (place, who)


@pytest.mark.parametrize("as_json", [False, True])
def test_no_line_of_the_log_shows_one(monkeypatch, as_json):
    monkeypatch.setattr("sys.stderr", said := io.StringIO())
    configure_logging("INFO", json_to_stderr=as_json)
    try:
        get("x").warning("store %s is away", "postgresql://me:secret@db/x")
        try:
            raise OSError("http://me:secret@host")
        except OSError:
            get("x").exception("failed")
    finally:
        configure_logging("INFO")
        logging.getLogger("reread").setLevel(logging.INFO)
    assert "secret" not in said.getvalue() and said.getvalue().count("me:***@") == 3
