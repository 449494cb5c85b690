"""Documents from a Hugging Face data set: a hub name at a fixed revision, or a local folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from storage.errors import CorpusError
from storage.progress import progress
from tasks.sources.bad_records import BadRecords
from tasks.sources.text_files import _sha256, checked_text
from tasks.specs import CorpusSpec


def resolve(spec: CorpusSpec) -> dict:
    """The checksums of a local folder, or the commit that the hub's default branch stands at."""
    folder = Path(spec.dataset).expanduser()
    if folder.is_dir():
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {"files": {path.relative_to(folder).as_posix(): _sha256(path) for path in files}}
    return {"revision": _revision(spec.dataset)}


def read(spec: CorpusSpec, tally: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yield (data set, text). A row without text raises CorpusError with its number, or is counted by reason."""
    rows = _load(spec)
    if spec.text_column not in rows.column_names:
        names = ", ".join(map(repr, rows.column_names))
        raise CorpusError(f"data set {spec.dataset!r} has no column {spec.text_column!r} (it has {names}); "
                          "set text_column")
    bad = BadRecords(spec.on_bad_record)
    name = Path(spec.dataset).name
    with progress(len(rows), "read the data set", "rows") as bar:
        for number, value in enumerate(rows.select_columns([spec.text_column])):
            text = checked_text(value[spec.text_column], spec.text_column, f"{spec.dataset}, row {number}", bad)
            if text is not None:
                yield name, text
            bar.advance()
    tally["read: rows"] += len(rows)
    tally.update({f"bad: {reason}": count for reason, count in bad.counts.items()})


def _revision(name: str) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        return HfApi().dataset_info(name, timeout=20).sha
    except (OfflineModeIsEnabled, HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CorpusError(f"data set {name!r} is no local folder, and the hub does not tell its revision ({reason}); "
                          "check the name and the network, or give a folder written by datasets' save_to_disk"
                          ) from error


def _load(spec: CorpusSpec):
    import datasets

    folder = Path(spec.dataset).expanduser()
    try:
        if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
            found = datasets.load_from_disk(str(folder))
            if isinstance(found, datasets.DatasetDict):
                if spec.dataset_split not in found:
                    raise CorpusError(f"{folder} has no split {spec.dataset_split!r}; it has {', '.join(found)}")
                found = found[spec.dataset_split]
            return found
        revision = None if folder.is_dir() else _revision(spec.dataset)
        return datasets.load_dataset(str(folder) if folder.is_dir() else spec.dataset, spec.dataset_config,
                                     split=spec.dataset_split, revision=revision)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CorpusError(f"data set {spec.dataset!r} cannot be loaded ({reason}); check its name, dataset_config and "
                          "dataset_split") from error
