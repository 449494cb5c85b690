"""Registered models: which versions there are, what their tags say, and which of them an alias means.

Reading and moving need an answer, so that nothing here is spooled: a store that is away or refuses is a `TrackingError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from storage.errors import TrackingError
from storage.tracking.asking import asked, pages
from storage.tracking.limits import VERSION_TAG, cut
from storage.tracking.places import absolute, default_uri

REFERENCE = re.compile(r"models:/(?P<name>[^/@]+)(?:/(?P<number>\d+)|@(?P<alias>[^/@]+))")


@dataclass(frozen=True)
class Version:
    """One version of a registered model."""

    name: str
    number: str
    run_id: str
    tags: dict[str, str]
    aliases: tuple[str, ...]
    created: float          # seconds since 1970

    @property
    def reference(self) -> str:
        """`models:/NAME/3`"""
        return f"models:/{self.name}/{self.number}"


class Registry:
    """The registered models of one MLflow store. Every method raises `TrackingError` when it is away or refuses.

    uri    tracking URI; None = `default_uri()`
    """

    def __init__(self, uri: str | None = None) -> None:
        self.uri = absolute(uri or default_uri())
        self._client: Any = None

    def names(self) -> list[str]:
        """Names of all registered models, in order."""
        with self._store() as store:
            return sorted(self._aliases(store))

    def versions(self, name: str | None = None) -> list[Version]:
        """All versions, of one model or of all, oldest first. A name that is not registered has none."""
        with self._store() as store:
            aliases = self._aliases(store, name)
            wanted = f"name = '{_quotable(name)}'" if name else None
            found = [_version(one, aliases.get(one.name, {}))
                     for one in pages(store.search_model_versions, filter_string=wanted)]
        return sorted(found, key=lambda one: (one.created, one.name, int(one.number)))

    def version(self, reference: str) -> Version:
        """The version that `models:/NAME/3` or `models:/NAME@alias` means."""
        parts = REFERENCE.fullmatch(reference)
        if parts is None:
            raise TrackingError(f"{reference!r} names no model version: expected models:/NAME/3 or models:/NAME@alias")
        with self._store() as store:
            found = (store.get_model_version(parts["name"], parts["number"]) if parts["number"]
                     else store.get_model_version_by_alias(parts["name"], parts["alias"]))
            return _version(found, self._aliases(store, parts["name"]).get(parts["name"], {}))

    def tag(self, version: Version, tags: Mapping[str, Any]) -> None:
        """Set tags of a version; its others stay."""
        with self._store() as store:
            for key, value in cut(tags, VERSION_TAG).items():
                store.set_model_version_tag(version.name, version.number, key, value)

    def aliases(self, name: str) -> dict[str, str]:
        """Alias -> number of the version that it means; none for a name that is not registered."""
        with self._store() as store:
            return self._aliases(store, name).get(name, {})

    def move(self, name: str, alias: str, number: str) -> None:
        """Let an alias mean this version from now on."""
        with self._store() as store:
            store.get_model_version(name, number)           # MLflow itself would take a number that is not there
            store.set_registered_model_alias(name, alias, number)

    @contextmanager
    def _store(self) -> Iterator[Any]:
        with asked(self.uri, self._client) as self._client:
            yield self._client

    @staticmethod
    def _aliases(store: Any, name: str | None = None) -> dict[str, dict[str, str]]:
        """Registered model -> its aliases."""
        wanted = f"name = '{_quotable(name)}'" if name else None
        return {model.name: {alias: str(number) for alias, number in model.aliases.items()}
                for model in pages(store.search_registered_models, filter_string=wanted)}


def _version(found: Any, aliases: Mapping[str, str]) -> Version:
    number = str(found.version)
    return Version(found.name, number, found.run_id or "", dict(found.tags),
                   tuple(sorted(alias for alias, of in aliases.items() if of == number)), found.creation_timestamp / 1000)


def _quotable(name: str) -> str:
    if "'" in name:
        raise TrackingError(f"a registered model cannot have a quote in its name: {name}")
    return name
