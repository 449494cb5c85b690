"""Questions to a store that need an answer, so that nothing here is spooled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from storage.errors import TrackingAway, TrackingError
from storage.tracking.client import Away, Refused, connect, translation

PAGE = 1000             # entries of one answer of the store


@contextmanager
def asked(uri: str, client: Any = None) -> Iterator[Any]:
    """MLflow's own client of the store at `uri`. client: one that is connected already

    :raises TrackingAway: the store does not answer
    :raises TrackingError: it refuses
    """
    try:
        client = client or connect(uri).raw
        with translation():
            yield client
    except Refused as refusal:
        raise TrackingError(f"tracking store {uri} refuses: {refusal}") from refusal
    except Away as away:
        raise TrackingAway(f"tracking store {uri} does not answer ({away}); `reread up` starts it, `reread status` "
                           "tells how it is") from away


def pages(search: Any, *given: Any, **wanted: Any) -> list[Any]:
    """Every page of a search."""
    found, token = [], None
    while True:
        page = search(*given, max_results=PAGE, page_token=token, **wanted)
        found += page
        token = page.token
        if not token:
            return found
