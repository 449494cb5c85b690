"""Studies as YAML files, and reading them: shipped ones by name, anybody's by path."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows import overrides
from flows.studies import every_mixer
from storage.errors import SpecError
from tasks.specs import StudySpec, Workload

FOLDER = Path(__file__).parent
FIRST, LAST = ("quick", "evening", "zoo", "fda", "jrt-table2"), "smoke"      # in lists; the others by name between them


def shipped() -> dict[str, Path]:
    """The studies that come with the package, by name, the quickest question first."""
    found = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
    return dict(sorted(found.items(), key=lambda item: FIRST.index(item[0]) if item[0] in FIRST
                       else len(FIRST) + (item[0] == LAST)))


def load(name: str, settings: Sequence[str] = ()) -> StudySpec:
    """The study called `name`, or in the YAML file at that path, with `--set` settings applied.

    A setting may start inside a workload (`train.steps=100`): it then holds for every workload that has that field.
    :raises SpecError: no such study (with close matches), unreadable YAML, or a value that a field refuses
    """
    path = find(name)
    study = overrides.validate(StudySpec, every_mixer.expanded(read(path), str(path)), str(path))
    check(study, str(path))
    return placed(changed(study, settings))


def placed(study: StudySpec) -> StudySpec:
    """The study with {data} replaced by its `data` in every path and checkpoint."""
    def at(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: at(each) for name, each in value.items()}
        if isinstance(value, list):
            return [at(each) for each in value]
        return value.replace("{data}", study.data) if isinstance(value, str) else value

    plain = overrides.plain(study)
    return overrides.validate(StudySpec, {**plain, "workloads": at(plain["workloads"])}, study.name)


def check_data(study: StudySpec) -> None:
    """SpecError where a study reads files of its `data` folder and there is no such folder."""
    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, (dict, list)):
            for each in value.values() if isinstance(value, dict) else value:
                yield from texts(each)
        elif isinstance(value, str):
            yield value.removeprefix("hf:")

    plain = overrides.plain(study)["workloads"]
    if not Path(study.data).is_dir() and any(text.startswith(f"{study.data}/") for text in texts(plain)):
        raise SpecError(f"study {study.name!r} reads files that are not part of reread, and there is no folder "
                        f"{study.data!r} (from {Path.cwd()}); give theirs with --set data=FOLDER (docs/data.md)")


def find(name: str) -> Path:
    """The file of a shipped study, or the one at that path.

    :raises SpecError: neither
    """
    return locate(name, shipped(), "study", "studies")


def locate(name: str, known: Mapping[str, Path], kind: str, kinds: str) -> Path:
    """The file of a shipped thing called `name`, or the YAML file at that path; `kind` and `kinds` say what it is.

    :raises SpecError: neither
    """
    if name in known:
        return known[name]
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise SpecError(f"there is no {kind} file {path}")
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    raise SpecError(f"there is no {kind} {name!r}" + (f"; did you mean {close[0]}?" if close else ".")
                    + f" Shipped {kinds}: {', '.join(known)}; or give the path of a .yaml file")


def read(path: Path) -> Any:
    """A YAML file, numbers like 1e-2 included.

    :raises SpecError: not a YAML mapping; names the line
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """A name that stands twice is an error: otherwise the last one wins and the first is lost in silence."""

        def construct_mapping(self, node, deep=False):
            seen = set()
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands there twice", key.start_mark)
                if isinstance(key, yaml.ScalarNode):
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        data = overrides.plain(yaml.load(path.read_text(encoding="utf-8"), Loader))
    except (yaml.YAMLError, UnicodeDecodeError, OSError, RecursionError) as error:
        raise SpecError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(data, dict):
        raise SpecError(f"{path} holds {type(data).__name__}, expected a mapping of field names to values")
    data.pop("shared", None)                            # YAML anchors live there
    return data


def changed(study: StudySpec, settings: Sequence[str]) -> StudySpec:
    """`study` with the settings applied and checked."""
    if not settings:
        return study
    data = overrides.plain(study)
    for setting in settings:
        keys, value = overrides.parse(setting)
        if keys == ["architectures"] and isinstance(value, (str, list)):
            keep_only(data, [str(name) for name in (value.split(",") if isinstance(value, str) else value)])
        elif keys[0] in StudySpec.model_fields:
            overrides.assign(study, data, keys, value)
        elif keys[0] in Workload.model_fields:
            _everywhere(study, data, keys, value)
        else:
            raise overrides.unknown(".".join(keys), keys[0], "", (*StudySpec.model_fields, *Workload.model_fields))
    study = overrides.validate(StudySpec, data, "--set")
    check(study, "--set")
    return study


def keep_only(data: dict, names: list[str]) -> None:
    """Leave these architectures in every workload that has them, and drop workloads and expectations without any.

    What the artifacts of the others are named does not change: a study can be run in parts.

    :raises SpecError: a name that no workload has
    """
    names = [name.strip() for name in names if name.strip()]
    known = list(dict.fromkeys(label for workload in data["workloads"].values() for label in workload["architectures"]))
    for name in names or [""]:
        if name not in known:
            raise overrides.unknown("architectures", name, "the study", known)
    for workload in data["workloads"].values():
        workload["architectures"] = {label: one for label, one in workload["architectures"].items() if label in names}
    data["workloads"] = {name: workload for name, workload in data["workloads"].items() if workload["architectures"]}
    if data.get("reference") not in names:
        data["reference"] = None
    data["expectations"] = [one for one in data.get("expectations", ()) if one["workload"] in data["workloads"]
                            and one["architecture"] in data["workloads"][one["workload"]]["architectures"]]


def _everywhere(study: StudySpec, data: dict, keys: list[str], value: Any) -> None:
    refusals = []
    for workload in study.workloads:
        try:
            overrides.assign(study, data, ["workloads", workload, *keys], value)
        except SpecError as refusal:
            refusals.append(refusal)
    if refusals and len(refusals) == len(study.workloads):
        raise refusals[0]


def check(study: StudySpec, source: str) -> None:
    """What the fields cannot say one by one: names that must agree with each other.

    :raises SpecError: naming the field
    """
    if not study.workloads:
        raise SpecError(f"{source}: workloads: there is none; a study needs at least one")
    for name, workload in study.workloads.items():
        if "/" in name:
            raise SpecError(f"{source}: workloads: a name has no '/', got {name!r}")
        if not workload.architectures:
            raise SpecError(f"{source}: workloads.{name}.architectures: there is none; give at least one")
        if not workload.seeds or min(workload.seeds) < 0 or len(set(workload.seeds)) < len(workload.seeds):
            raise SpecError(f"{source}: workloads.{name}.seeds: got {list(workload.seeds)}; give one or more different "
                            "whole numbers from 0 on")
        trains = any(one.model for one in workload.architectures.values())
        if trains and workload.train.data == "rows" and workload.rows is None:
            raise SpecError(f"{source}: workloads.{name}.rows: missing; train.data is 'rows'")
        needs_text = trains and workload.train.data == "shards" or getattr(workload.rows, "kind", "") == "recall"
        if needs_text and workload.corpus is None:
            raise SpecError(f"{source}: workloads.{name}.corpus: missing; its rows are made from text")
        if getattr(workload.rows, "kind", "") == "questions":
            for field in ("corpus", "training_questions"):
                if getattr(workload, field) is None:
                    raise SpecError(f"{source}: workloads.{name}.{field}: missing; rows of kind 'questions' need the text "
                                    "that the tokenizer is made from and the questions that they are drawn from")
            for evaluation in workload.evaluations:
                asked, trained = evaluation.questions, workload.training_questions
                if asked and (set(asked.paths) & set(trained.paths) or asked.dataset and asked.dataset == trained.dataset):
                    raise SpecError(f"{source}: workloads.{name}.evaluations: {evaluation.label!r} asks the questions that "
                                    "training_questions trains on; train on other documents than are asked about")
        labels = [evaluation.label for evaluation in workload.evaluations]
        twice = {label for label in labels if labels.count(label) > 1}
        if twice:
            raise SpecError(f"{source}: workloads.{name}.evaluations: {sorted(twice)[0]!r} appears twice; "
                            "give the second a `name` of its own")
        for number, evaluation in enumerate(workload.evaluations):
            wanted, room = evaluation.evaluate.generation_tokens, evaluation.cloze.generation_tokens
            if wanted > room:
                raise SpecError(f"{source}: workloads.{name}.evaluations.{number}.evaluate.generation_tokens: got "
                                f"{wanted}, but its cloze.generation_tokens leaves room for {room}; make them agree")
        for label in workload.architectures:
            if "/" in label:
                raise SpecError(f"{source}: workloads.{name}.architectures: a label has no '/', got {label!r}")
            if workload.architectures[label].checkpoint:
                continue
            train = training(workload, label, f"{source}: workloads.{name}.architectures.{label}.train_overrides")
            if train.trial is not None:
                raise SpecError(f"{source}: workloads.{name}.train.trial: got {train.trial:g}; a trial keeps no weights that "
                                "could be evaluated, so a study sets it in its sweeps alone; leave it out")
            if train.sweep is not None and getattr(workload.rows, "validation_tokens", 1) == 0:
                raise SpecError(f"{source}: workloads.{name}.rows.validation_tokens: got 0; the sweep of {label} chooses on "
                                "validation rows, so write some, or set train.sweep to null")
    known = dict.fromkeys(label for workload in study.workloads.values() for label in workload.architectures)
    if study.reference is not None and study.reference not in known:
        raise SpecError(f"{source}: reference: got {study.reference!r}; it can be: {', '.join(known)}")
    for number, expected in enumerate(study.expectations):
        _check_expectation(study, expected, f"{source}: expectations.{number}")


def training(workload: Workload, label: str, source: str = "train_overrides"):
    """The workload's training spec with what this architecture changes."""
    data = overrides.plain(workload.train)
    for dotted, value in workload.architectures[label].train_overrides.items():
        try:
            overrides.assign(workload.train, data, dotted.split("."), value)
        except SpecError as error:
            raise SpecError(f"{source}: {str(error).removeprefix('--set ')}") from error
    return overrides.validate(type(workload.train), data, source)


def _check_expectation(study: StudySpec, expected, source: str) -> None:
    if expected.workload not in study.workloads:
        raise SpecError(f"{source}.workload: got {expected.workload!r}; it can be: {', '.join(study.workloads)}")
    workload = study.workloads[expected.workload]
    if expected.architecture not in workload.architectures:
        raise SpecError(f"{source}.architecture: got {expected.architecture!r}; it can be: "
                        f"{', '.join(workload.architectures)}")
    orders = {evaluation.label: evaluation.cloze.orders for evaluation in workload.evaluations}
    if expected.task not in orders:
        raise SpecError(f"{source}.task: got {expected.task!r}; it can be: {', '.join(orders) or '(no evaluations)'}")
    if expected.order not in orders[expected.task]:
        raise SpecError(f"{source}.order: got {expected.order!r}; it can be: {', '.join(orders[expected.task])}")
