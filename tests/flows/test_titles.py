"""What runs are called, and which checkpoint a person means. Manifests are made by hand; nothing works here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flows.forms import forms, requests, titles
from flows.forms.checkpoints import resolve, whole
from storage.artifacts import Store
from storage.errors import ArtifactError, SpecError, TrackingError
from storage.manifest import Manifest, write_manifest

CHECKPOINT, OTHER, PROMPTS = "checkpoint-0123456789abcdef", "checkpoint-01ff000000000000", "prompts-0123456789abcdef"


@pytest.fixture
def store(home) -> Store:
    found = Store()
    for artifact, spec, counts in ((CHECKPOINT, {}, {"architecture": "jrt", "seed": 0, "model": "jrt-tiny"}),
                                   (OTHER, {}, {"architecture": "based", "seed": 1, "model": "based-tiny"}),
                                   (PROMPTS, {"task": "fda", "orders": ["default", "twice", "repeat"]}, {})):
        folder = home / "artifacts" / artifact
        folder.mkdir(parents=True)
        write_manifest(folder, Manifest(kind=artifact.rpartition("-")[0], id=artifact, spec=spec, inputs={}, code="", version="1",
                                        libraries={}, git_commit=None, files=[], counts=counts, seconds=1, created="2026"))
    return found


@pytest.mark.parametrize("request_, title", [
    (requests.StudyRequest(), "study quick"),
    (requests.StudyRequest(file="some/own.yaml", settings=("a=1", "b=2")), "study own, 2 changes"),
    (requests.TokeniseRequest(tokenizer="bytes"), "tokenise pydocs with bytes"),
    (requests.TokeniseRequest(corpus={"source": "files", "paths": ["a/x.txt", "b", "c"]}), "tokenise x.txt and 2 more with gpt2"),
    (requests.PretrainRequest(model="jrt-tiny", rows={"kind": "recall", "tokens": 2_000_000}),
     "pretrain jrt-tiny on pydocs, 2.0M tokens"),
    (requests.PretrainRequest(model="based-mini", seed=2, rows={"kind": "disjoint", "batches": 10}),
     "pretrain based-mini on set intersection, 15k tokens, seed 2"),
    (requests.PretrainRequest(model="jrt-360m", train={"data": "shards", "steps": 10}, corpus={
        "source": "huggingface", "dataset": "org/wiki"}), "pretrain jrt-360m on wiki, 5.2M tokens"),
    (requests.PretrainRequest(model="jrt-mini", rows={"kind": "questions"}, questions={"task": "fda", "paths": ["x"]}),
     "pretrain jrt-mini on fda questions, 3.0M tokens"),
    (requests.ClozeRequest(task="disjoint"), "cloze disjoint, 2 orders"),
    (requests.ClozeRequest(task="pydocs", orders=["twice"]), "cloze pydocs, 1 order"),
    (requests.EvaluateRequest(checkpoint="checkpoint-0123", prompts="prompts-01"), "evaluate jrt-tiny on fda, 3 orders"),
    (requests.EvaluateRequest(checkpoint="models:/quick-pydocs@best-tiny", cloze={"task": "lookup"}),
     "evaluate quick-pydocs@best-tiny on lookup, 3 orders"),
    (requests.EvaluateRequest(checkpoint="nothing", cloze={"task": "pydocs"}), "evaluate nothing on pydocs, 3 orders"),
    (requests.PerplexityRequest(checkpoint="01ff"), "perplexity of based-tiny on its training text, 3200 sequences"),
    (requests.ExtrapolationRequest(checkpoint=CHECKPOINT, paths=["b/*.txt"]),
     "extrapolation of jrt-tiny on *.txt, up to 131k tokens"),
    (requests.DeployRequest(checkpoint="hf:org/gpt2", lengths=[512]), "deploy gpt2 on cpu, 1 length to 512 tokens"),
    (requests.BenchRequest(preset="gate"), "bench gate on cpu"),
])
def test_the_title_says_what_is_done(store, request_, title):
    assert request_.title(store) == title


def test_every_request_has_a_title():
    assert all(callable(form.request.title) for form in forms.FORMS.values())


@pytest.mark.parametrize("parameters, name", [
    ({"request": {"orders": ["twice"]}}, "cloze pydocs, 1 order"), ({"request": forms.ClozeForm()}, "cloze pydocs, 3 orders"),
    ({"request": {"task": "squad"}}, "cloze"), ({"request": {"nothing": 1}}, "cloze"), ({}, "cloze"), (None, "cloze"),
])
def test_a_run_never_fails_over_its_name(home, monkeypatch, parameters, name):
    import prefect

    monkeypatch.setattr(prefect.runtime, "flow_run", SimpleNamespace(flow_name="cloze", parameters=parameters))
    assert titles.run_name() == name


@pytest.mark.parametrize("letters", [CHECKPOINT, "checkpoint-0123", "0123", " checkpoint-0123 "])
def test_a_checkpoint_is_known_by_its_first_letters(store, letters):
    assert resolve(store, letters) == CHECKPOINT


def test_a_model_of_transformers_is_taken_as_it_is(store):
    assert resolve(store, "hf:org/gpt2@main") == "hf:org/gpt2@main"


@pytest.mark.parametrize("letters, words", [
    ("checkpoint-0", "could be any of 2 checkpoint artifacts: checkpoint-0123456789abcdef (jrt-tiny)"),
    ("checkpoint-9", "there is no checkpoint 'checkpoint-9'"), ("checkpoint-9", "checkpoint-01ff000000000000 (based-tiny)"),
    ("", "there is no checkpoint ''"), (PROMPTS, "is a prompts artifact, expected one of kind checkpoint"),
    ("jrt-tiny", "there are checkpoint-"),
])
def test_one_sentence_when_there_is_no_such_checkpoint(store, letters, words):
    with pytest.raises(ArtifactError) as refusal:
        resolve(store, letters)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def test_prompts_too(store):
    assert whole(store, "prompts-01", "prompts") == PROMPTS
    with pytest.raises(ArtifactError, match=r"prompts-0123456789abcdef \(fda\)"):
        whole(store, "prompts-7", "prompts")


class FakeRegistry:
    """The registry's answers, from a dictionary: name -> number -> (checkpoint, aliases)."""

    models: dict = {}

    def names(self):
        return sorted(self.models)

    def versions(self, name):
        return [SimpleNamespace(number=number, tags={"checkpoint": checkpoint} if checkpoint else {}, aliases=aliases)
                for number, (checkpoint, aliases) in self.models.get(name, {}).items()]

    def aliases(self, name):
        return {alias: one.number for one in self.versions(name) for alias in one.aliases}


@pytest.fixture
def registry(monkeypatch):
    from storage.tracking import registry

    monkeypatch.setattr(registry, "Registry", FakeRegistry)
    monkeypatch.setattr(FakeRegistry, "models", {"quick-pydocs": {
        "1": (OTHER, ()), "2": (CHECKPOINT, ("best-tiny",)), "3": (None, ()), "4": ("checkpoint-4444444444444444", ())}})


@pytest.mark.parametrize("reference, artifact", [
    ("models:/quick-pydocs/1", OTHER), ("models:/quick-pydocs/2", CHECKPOINT), ("models:/quick-pydocs@best-tiny", CHECKPOINT)])
def test_a_registered_version_is_its_checkpoint(store, registry, reference, artifact):
    assert resolve(store, reference) == artifact


@pytest.mark.parametrize("reference, words", [
    ("models:/quack/1", "registered are quick-pydocs"), ("models:/quick-pydocs", "expected models:/NAME/3 or models:/NAME@alias"),
    ("models:/quick-pydocs/9", "it has 1, 2, 3, 4, @best-tiny"), ("models:/quick-pydocs@worst", "it has 1, 2, 3, 4, @best-tiny"),
    ("models:/quick-pydocs/3", "no tag `checkpoint`"), ("models:/quick-pydocs/4", "which is not under"),
])
def test_one_sentence_when_there_is_no_such_version(store, registry, reference, words):
    with pytest.raises((TrackingError, ArtifactError)) as refusal:
        resolve(store, reference)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def test_the_command_line_takes_first_letters_too(reread, store):
    said = reread("evaluate", "--checkpoint", "checkpoint-9", "--task", "disjoint")
    assert said.code != 0 and "checkpoint-01ff000000000000 (based-tiny)" in said.err


def test_a_model_is_not_asked_in_ids_that_it_does_not_know(store):
    """Told before anything starts: its rows say which ids there are."""
    ours = store.manifest(CHECKPOINT)
    assert ours.kind == "checkpoint"
    with pytest.raises(SpecError, match="prompts of task 'disjoint' are written in ids:256, the models are trained on"):
        requests.EvaluateRequest(checkpoint=CHECKPOINT, cloze={"task": "disjoint"}).plan(store)
