"""A finished training becomes a version of a registered model: card, weights for transformers, tags.

REREAD_REGISTER says how much: `weights` (all; the default), `tags` (card and tags, no weights), `off`. The files are
made in a folder of the home and move to the artifacts of the run, where the version points; they take what the weights
take (4 bytes a parameter in float32), once more than the checkpoint itself. Nothing here stops the work: what fails is
told and the checkpoint stays as it is.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from flows.recording.about import About, size_of
from storage import logs
from storage.artifacts import Store
from storage.errors import SpecError, TrackingError
from storage.home import local_home
from storage.tracking import Tracking
from storage.tracking.registry import Registry

SETTING, WEIGHTS, TAGS, OFF = "REREAD_REGISTER", "weights", "tags", "off"
PLACE = "model"             # folder among the artifacts of the run
SHOWN = ("Architecture", "Data", "Budget and training")     # sections of the card that a version's page shows
KEPT = ("architecture", "model", "parameters", "state_bytes", "state_tokens", "corpus", "seed", "study", "workload")

log = logs.get("flows.registering")


def wanted() -> str:
    """:raises SpecError: the setting has another value"""
    found = os.environ.get(SETTING) or WEIGHTS
    if found not in (WEIGHTS, TAGS, OFF):
        raise SpecError(f"{SETTING} is {found!r}; expected weights, tags or off")
    return found


def register(tracking: Tracking, run: str, store: Store, checkpoint: str, about: About, commit: str | None = None) -> None:
    """One version for this checkpoint; the same again changes nothing but its tags."""
    how = wanted()
    if how == OFF or not about.register:
        return
    try:
        facts = version_tags(store, checkpoint, about, commit)
        folder = local_home() / "exports" / checkpoint
        card = _write(store, checkpoint, folder, weights=how == WEIGHTS)
        octets = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        tracking.artifacts(run, folder, PLACE, move=True)
        words = (f"{summary(facts)} {introduction(card)}\n\n[Card]({tracking.link(run, f'{PLACE}/README.md')}) and {_what(how)}: `{PLACE}/` "
                 f"of the source run, {octets / 1e6:,.1f} MB.\n\n{sections(card)}")
        number = tracking.register(about.register, run, PLACE, facts, words.strip(), family(about.register, facts))
        log.info("%s: version %s of the registered model %s, %.1f MB of %s in the tracking store", checkpoint,
                 number or "(number follows when the tracking store is back)", about.register, octets / 1e6, _what(how))
    except Exception as error:                 # noqa: BLE001  a training of days does not fail because of its shop window
        log.warning("%s is not registered as %s (%s: %s); the checkpoint is whole, and the next run of this study tries "
                    "again", checkpoint, about.register, type(error).__name__, error)


def register_missed(tracking: Tracking, experiment: str, store: Store, wants: dict[str, About]) -> None:
    """Checkpoints that are there but have no version, because a process was killed on the way.

    wants: checkpoint -> what its run would be about. Those without a run in the experiment have no place for their files
    and stay unregistered.
    """
    if not wants or wanted() == OFF:
        return
    try:
        registry = Registry(tracking.uri)
        for name in sorted({about.register for about in wants.values()}):
            known = {version.tags.get("checkpoint") for version in registry.versions(name)}
            for checkpoint, about in wants.items():
                if about.register == name and checkpoint not in known:
                    for run in tracking.find(experiment, {"artifact": checkpoint})[:1]:
                        register(tracking, run, store, checkpoint, about)
    except TrackingError as error:
        log.warning("earlier checkpoints are not looked up in the registry: %s", error)


def version_tags(store: Store, checkpoint: str, about: About, commit: str | None = None) -> dict[str, Any]:
    """What people and the nightly evaluation find a version by."""
    manifest = store.manifest(checkpoint)
    facts = {name: about.facts[name] for name in KEPT if name in about.facts}
    return {"checkpoint": checkpoint, **facts, "size": size_of(str(facts.get("model", ""))),
            "tokens": manifest.counts.get("tokens", about.facts.get("tokens", "")),
            "git_commit": manifest.git_commit or commit or "unknown"}


def summary(facts: dict[str, Any]) -> str:
    """`jrt-tiny, seed 0, trained on 2,000,000 tokens of pydocs.`"""
    tokens = f"{facts['tokens']:,} tokens" if isinstance(facts.get("tokens"), int) else "data"
    return f"{facts.get('model', facts['checkpoint'])}, seed {facts.get('seed', '?')}, trained on {tokens} of {facts.get('corpus', 'unknown text')}."


def _write(store: Store, checkpoint: str, folder: Path, weights: bool) -> str:
    """Card and weights into a folder that is new; returns the card."""
    from flows.commands.weights import CARD, write_folder

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_folder(store.path(checkpoint), store.manifest(checkpoint), store, folder, weights)
    return (folder / CARD).read_text(encoding="utf-8")


def introduction(card: str) -> str:
    """The first paragraph below the title of a model card."""
    _, _, rest = card.partition("\n# ")
    return next((part.strip() for part in rest.split("\n\n")[1:] if part.strip()), "")


def sections(card: str) -> str:
    """What a card says of the model and its training; how to load it is for readers of the card itself."""
    parts = {part.partition("\n")[0]: part.strip() for part in card.split("\n## ")[1:]}
    return "\n\n".join(f"### {parts[name]}" for name in SHOWN if name in parts)


def family(name: str, facts: dict[str, Any]) -> str:
    """What all versions of a registered model have in common, and how they are named."""
    return (f"One version for each checkpoint trained on `{facts.get('workload', facts.get('corpus', 'its data'))}`; tags say what each is. "
            f"A command takes a version as `models:/{name}/1`, and as `models:/{name}@best-{facts['size']}` the one that the nightly "
            f"evaluation found best of its size.")


def _what(how: str) -> str:
    return "weights" if how == WEIGHTS else "tags"
