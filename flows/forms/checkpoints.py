"""Which trained model a person means: an artifact, a registered model version, or a model of transformers."""

from __future__ import annotations

from contextlib import suppress

from storage.artifacts import Store
from storage.errors import ArtifactError, TrackingError
from tasks.external import is_external

REGISTERED = "models:/"
SHOWN = 6           # of what exists, in a sentence that says that something does not


def resolve(store: Store, reference: str) -> str:
    """The id of the checkpoint artifact that `reference` means; `hf:...` as it is.

    reference  an id or its unique first letters (with or without `checkpoint-`), `models:/NAME/3`, `models:/NAME@alias`,
               or `hf:<folder or hub name>`

    Raises ArtifactError or TrackingError, naming what exists.
    """
    reference = reference.strip()
    if is_external(reference):
        return reference
    if reference.startswith(REGISTERED):
        return _registered(store, reference)
    return whole(store, reference, "checkpoint")


def whole(store: Store, letters: str, kind: str) -> str:
    """The id of the one artifact of this kind that begins with `letters`, which may leave out the kind.

    Raises ArtifactError where none does, or several.
    """
    if _is_there(store, letters):
        if store.manifest(letters).kind != kind:
            raise ArtifactError(f"{letters} is a {store.manifest(letters).kind} artifact, expected one of kind {kind}; "
                                f"`reread list --kind {kind}` shows those there are")
        return letters
    known = store.list(kind)
    found = [one for one in known if letters and one.id.startswith((letters, f"{kind}-{letters}"))]
    if len(found) == 1:
        return found[0].id
    some = found or known[::-1]
    listed = ", ".join(_named(one) for one in some[:SHOWN]) + (", ..." if len(some) > SHOWN else "")
    if found:
        raise ArtifactError(f"{letters} could be any of {len(found)} {kind} artifacts: {listed}; give more of its letters")
    raise ArtifactError(f"there is no {kind} {letters!r} under {store.root}; " + (
        f"there are {listed}" if known else "there is none yet: the flow that makes one has to run first"))


def _is_there(store: Store, name: str) -> bool:
    """Whether this is the whole id of an artifact; what cannot be an id is none."""
    with suppress(ArtifactError):
        return store.exists(name)
    return False


def _named(manifest) -> str:
    """`checkpoint-0123456789abcdef (jrt-tiny)`"""
    about = manifest.counts.get("model") or manifest.spec.get("task")
    return f"{manifest.id} ({about})" if about else manifest.id


def _registered(store: Store, reference: str) -> str:
    from storage.tracking.registry import REFERENCE, Registry

    registry = Registry()
    parts = REFERENCE.fullmatch(reference)
    names = registry.names()
    if parts is None or parts["name"] not in names:
        raise TrackingError(f"{reference} is no registered model version: expected models:/NAME/3 or models:/NAME@alias; "
                            + (f"registered are {', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"
                               if names else "no model is registered yet, a finished pretraining registers one"))
    versions = {one.number: one for one in registry.versions(parts["name"])}
    number = parts["number"] or registry.aliases(parts["name"]).get(parts["alias"])
    if number not in versions:
        aliases = [f"@{alias}" for one in versions.values() for alias in one.aliases]
        raise TrackingError(f"{reference}: model {parts['name']} has no such version; it has "
                            f"{', '.join([*list(versions)[-SHOWN:], *aliases]) or 'none'}")
    artifact = versions[number].tags.get("checkpoint")
    if not artifact:
        raise TrackingError(f"{reference} was not registered by reread: it has no tag `checkpoint` that names an artifact")
    if not store.exists(artifact):
        raise ArtifactError(f"{reference} is {artifact}, which is not under {store.root}; set REREAD_HOME to where it was "
                            "made, or train it again")
    return artifact
