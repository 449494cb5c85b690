"""Passwords in addresses are for servers: no page, log, table or process list shows them."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit, urlunsplit

HIDDEN = "***"
# `scheme://user:password@`; in the address of a database a password may hold a slash
PASSWORD = re.compile(r"((?:postgres|mysql|mariadb|mssql|oracle)[\w+]*://[^\s/:@]*):[^\s@]+@|(\w://[^\s/:@]*):[^\s/]+@")


def masked(text: str) -> str:
    """`text` with every password in an address hidden; the name before it stays."""
    return PASSWORD.sub(lambda found: f"{found[1] or found[2]}:{HIDDEN}@", text)


def parted(url: str) -> tuple[str, str | None]:
    """An address without who asks, and `name:password` if it said so."""
    try:
        parts = urlsplit(url)
        who, at, place = parts.netloc.rpartition("@")
    except ValueError:                  # no address at all, which whoever asks there will be told
        return url, None
    return (urlunsplit(parts._replace(netloc=place)), unquote(who)) if at else (url, None)
