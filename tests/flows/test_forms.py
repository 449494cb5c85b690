"""Forms: they reach every field of their request, in one place each, and say what does not fit together."""

from __future__ import annotations

import subprocess
import sys
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import ValidationError as Refused
from prefect.utilities.schema_tools.validation import validate
from pydantic import BaseModel, ValidationError

from flows import single, studies
from flows.forms import choices, forms, requests
from flows.forms.fields import Form, look, specs
from flows.forms.mapping import paths
from flows.showing.failure import read
from flows.study import study
from storage.artifacts import Store
from storage.errors import RereadError, SpecError
from tasks import scoring
from tasks import specs as stage_specs
from tasks.evals import base

FLOWS = {flow.name: flow for flow in (study, *single.ALL)}
NEEDED = {"evaluate": {"checkpoint": "checkpoint-01"}, "perplexity": {"checkpoint": "checkpoint-01"},
          "extrapolation": {"checkpoint": "checkpoint-01"}, "deploy": {"checkpoint": "checkpoint-01"}}
WITHIN = {"cloze": {"task": "fda", "questions": {"task": "fda", "paths": ["x"]}, "corpus": {"source": "pydocs"},
                    "tokenise": {"tokenizer": "gpt2"}},
          "pretrain": {"model": "jrt-tiny", "rows": {"kind": "questions"}, "questions": {"task": "fda", "paths": ["x"]},
                       "corpus": {"source": "files", "paths": ["x"]}, "train": {"sweep": {"values": [0.1, 0.2]}}},
          **{name: {**NEEDED[name], "corpus": {"source": "pydocs"}} for name in ("perplexity", "extrapolation")}}
WITHIN["evaluate"] = {**NEEDED["evaluate"], "cloze": WITHIN["cloze"]}
ROWS = {"recall": stage_specs.RecallRowsSpec, "disjoint": stage_specs.DisjointRowsSpec,
        "questions": stage_specs.QuestionRowsSpec}
SOURCES = ("corpus.source", "corpus.packages", "corpus.paths", "corpus.dataset", "corpus.dataset_config",
           "corpus.dataset_split")      # each is asked with its own source only
FIXED = {"questions.task", "cloze.questions.task", "train.sweep.metric"}      # follow from others, or have one value


def leaves(model: type[BaseModel], base: str = "") -> list[str]:
    """Every field of a request, by dotted path; of the rows of a training, those of all kinds."""
    found = []
    for name, field in model.model_fields.items():
        inside = specs(field.annotation)
        for one in inside:
            found += leaves(one, f"{base}{name}.")
        found += [] if inside else [f"{base}{name}"]
    return found


def changed(value: Any, annotation: Any) -> Any:
    """Another value of the same type."""
    kinds = [one for one in get_args(annotation) if one is not NoneType] if NoneType in get_args(annotation) else [annotation]
    if get_origin(kinds[0]) is Literal:
        return next(one for one in (*get_args(kinds[0]), None) if one != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int) or value is None and kinds[0] is int:
        return (value or 15) + 1
    if isinstance(value, float) or value is None and kinds[0] is float:
        return (value or 0.9) / 2
    if isinstance(value, dict):
        return {"default": 0.5}
    if isinstance(value, tuple):
        return value[:-1] if len(value) > 2 else tuple(each + 1 for each in value) if value and isinstance(value[0], int) else (
            tuple(each / 2 for each in value) if value and isinstance(value[0], float) else ("a", "b"))
    return "changed"


def field_at(model: type[BaseModel], path: str) -> Any:
    head, _, rest = path.partition(".")
    field = model.model_fields[head]
    return field_at(specs(field.annotation)[0], rest) if rest else field.annotation


def same(form: type[forms.FlowForm], request: Any) -> None:
    there_and_back = form.of(request).to_request()
    assert there_and_back.model_dump() == request.model_dump()
    again = form.model_validate(form.of(request).model_dump(mode="json"))       # as Prefect keeps and sends it
    assert again.to_request().model_dump() == request.model_dump()


@pytest.mark.parametrize("name", FLOWS)
def test_a_form_and_its_request_say_the_same_field_by_field(name):
    form, least = forms.FORMS[name], WITHIN.get(name, NEEDED.get(name, {}))
    request = form.request.model_validate(least)
    same(form, request)
    tried = 0
    for path in leaves(form.request):
        if path in FIXED or path.startswith("rows.") or path.endswith(SOURCES):
            continue
        annotation, data = field_at(form.request, path), request.model_dump(exclude_unset=True)
        *parents, last = path.split(".")
        where = data
        for parent in parents:
            where = where.setdefault(parent, {})
            if where is None:
                break
        if where is None:
            continue
        where[last] = changed(look(request, path), annotation)
        try:
            other = form.request.model_validate(data)
        except ValidationError:                # cannot be changed alone
            continue
        tried += 1
        same(form, other)
    whole = [path for path in leaves(form.request) if not path.startswith("rows.") and not path.endswith(SOURCES)]
    assert tried >= 0.6 * len(whole), tried


@pytest.mark.parametrize("kind", ROWS)
def test_training_rows_of_every_kind_there_and_back(kind):
    for path in leaves(ROWS[kind]):
        if path == "kind":
            continue
        value = changed(getattr(ROWS[kind](), path), field_at(ROWS[kind], path))
        if path in ("order_shares", "sizes", "list_lines", "passage_tokens"):
            value = {"order_shares": {"twice": 1.0}, "sizes": [[2, 8]]}.get(path, [2, 3])
        rows = {"kind": kind, path: min(value, 0.9) if isinstance(value, float) else value}
        asks = {"questions": WITHIN["pretrain"]["questions"]} if kind == "questions" else {}
        same(forms.PretrainForm, forms.PretrainForm.request(model="jrt-tiny", rows=rows, **asks))


@pytest.mark.parametrize("fields", [
    {"train": {"data": "shards", "steps": 1000}}, {"train": {"data": "shards", "steps": 7}}, {"rows": {"kind": "disjoint"}},
    {"corpus": {"source": "files", "paths": ["a.txt"]}, "seed": 3}, {"tokenise": {"row_tokens": 512}},
    {"corpus": {"packages": ["numpy"]}}, {"corpus": {"source": "huggingface", "dataset": "x", "dataset_config": "en"}},
    {"corpus": {"source": "huggingface", "dataset": "x", "dataset_split": "test", "text_column": "body"}},
])
def test_trainings_there_and_back(fields):
    same(forms.PretrainForm, forms.PretrainForm.request(model="jrt-mini", **fields))


@pytest.mark.parametrize("name, fields", [
    ("cloze", {"task": "lookup", "corpus": {}}), ("cloze", {"task": "lookup", "tokenise": {}}),
    ("cloze", {"task": "pydocs", "limit": None}), ("evaluate", {"checkpoint": "c", "prompts": "prompts-01"}),
    ("evaluate", {"checkpoint": "c", "cloze": {"task": "disjoint"}}), ("perplexity", {"checkpoint": "c", "bigrams": None}),
    ("perplexity", {"checkpoint": "c", "sequences": None, "corpus": {}}), ("study", {"file": "own.yaml"}),
])
def test_what_nothing_means_is_kept(name, fields):
    form = forms.FORMS[name]
    same(form, form.request.model_validate(fields))


def test_orders_are_those_of_the_task_unless_they_were_chosen():
    form = forms.ClozeForm
    assert "orders" not in form(task="disjoint").to_request().model_fields_set
    chosen = form.request(task="disjoint", orders=("default", "question_first", "twice"))
    assert "orders" in form.of(chosen).to_request().model_fields_set
    assert "orders" not in form.of(form.request(task="disjoint")).to_request().model_fields_set


def active(form: Form, base: str = "", rows: Any = None) -> list[str]:
    """Where the fields of a form stand, with the tabs and the details of training rows that are chosen."""
    from flows.forms.mapping import _places

    found = []
    for name, _, path, _ in _places(type(form), base):
        value = getattr(form, name)
        rows = value.part_of if name == "data" else rows
        if not isinstance(value, Form):
            found.append(path)
        elif path != "rows" or value.part_of in (rows, None):
            found += active(value, path, rows)
    return found


@pytest.mark.parametrize("name", FLOWS)
def test_every_field_of_a_request_is_in_one_place_of_its_form(name):
    form = forms.FORMS[name]
    missing = set(leaves(form.request)) - set(paths(form)) - FIXED - {"rows.kind"}
    assert missing == set() and set(paths(form)) - set(leaves(form.request)) <= {"bigrams"}
    opened = [form(**NEEDED.get(name, {}))]
    if name == "pretrain":
        opened += [form(data=data) for data in ({"batches": 3}, {"task": "fda"}, {"text_steps": 3})]
    for one in opened:
        where = active(one)
        assert sorted(where) == sorted(set(where))


# ------------------------------------------------------------------------------------------------------ the page
def schema(name: str) -> dict[str, Any]:
    return parameter_schema(FLOWS[name]).model_dump_for_openapi()


def resolved(facts: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    return {**whole["definitions"][facts["$ref"].rsplit("/", 1)[1]], **facts} if "$ref" in facts else facts


def as_opened(facts: dict[str, Any], whole: dict[str, Any], unfold: bool) -> Any:
    """What the page sends of a field that nobody touches; unfold: somebody opened every folded group."""
    facts = resolved(facts, whole)
    if "anyOf" in facts and unfold and facts["anyOf"][0].get("title") == "As usual":
        facts = resolved(facts["anyOf"][1], whole)
    elif "anyOf" in facts:
        facts = resolved(facts["anyOf"][0], whole)
    if "properties" in facts:
        found = {name: as_opened(each, whole, unfold) for name, each in facts["properties"].items()}
        return {name: each for name, each in found.items() if each is not None}
    return facts.get("default", {} if facts.get("type") == "object" else None)


@pytest.mark.parametrize("unfold", [False, True])
@pytest.mark.parametrize("name", FLOWS)
def test_a_form_can_be_submitted_as_it_opens(name, unfold):
    """And says what the request says by default, however much of it was looked at."""
    whole = schema(name)
    sent = {**as_opened(whole["properties"]["request"], whole, unfold), **NEEDED.get(name, {})}
    validate({"request": sent}, whole, raise_on_error=True)
    form = forms.FORMS[name].model_validate(sent)
    assert form.to_request() == forms.FORMS[name](**NEEDED.get(name, {})).to_request()
    if name not in NEEDED:
        validate({}, whole, raise_on_error=True)
    else:
        with pytest.raises(Refused, match="checkpoint"):
            validate({"request": {}}, whole, raise_on_error=True)


@pytest.mark.parametrize("name", FLOWS)
def test_pages_show_no_nulls_and_keep_the_order(name):
    whole = schema(name)
    for facts in whole["definitions"].values():
        properties = facts.get("properties", {})
        assert [one["position"] for one in properties.values()] == list(range(len(properties)))
        assert "null" not in str(properties) and "oneOf" not in str(properties)
    first = list(resolved(whole["properties"]["request"], whole)["properties"])
    assert first[-1] == "advanced" and ("checkpoint" not in first or first[0] == "checkpoint")
    assert len(first) <= 8, "the rest belongs into the group advanced"


@pytest.mark.parametrize("name, sent, field", [
    ("pretrain", {"model": "jrt-tinny"}, "request.model"), ("cloze", {"task": "sqad"}, "request.task"),
    ("cloze", {"orders": ["default", "trice"]}, r"request.orders\[1\]"), ("bench", {"preset": "slow"}, "request.preset"),
    ("study", {"study": "quack"}, "request.study"), ("pretrain", {"seed": -1}, "request.seed"),
    ("pretrain", {"advanced": {"train": {"threads": 0}}}, "request.advanced.train.threads"),
    ("evaluate", {"checkpoint": "c", "strategy": "right_pad"}, "request.strategy"),
    ("evaluate", {"checkpoint": "c", "advanced": {"cloze": {"template": "dirty"}}}, "request.advanced.cloze.template"),
    ("evaluate", {"checkpoint": ""}, "request.checkpoint"), ("cloze", {"limt": 3}, "'limt' was unexpected"),
    ("tokenise", {"corpus": {"paths": []}}, "request.corpus"), ("deploy", {"checkpoint": "c", "lengths": []}, "request.lengths"),
])
def test_the_server_refuses_what_is_no_choice_and_names_the_field(name, sent, field):
    with pytest.raises(Refused, match=field):
        validate({"request": sent}, schema(name), raise_on_error=True)


def enum(name: str, model: str, field: str) -> list[str]:
    facts = schema(name)["definitions"][model]["properties"][field]
    return facts.get("items", facts)["enum"]


def test_selects_offer_what_the_registries_have():
    from models.presets import FAMILIES, preset_names
    from tasks.benchmarks import presets
    from tasks.templates import RELEASED

    assert enum("pretrain", "PretrainForm", "model") == preset_names(*FAMILIES)
    assert enum("cloze", "ClozeForm", "task") == enum("evaluate", "WritePrompts", "task") == base.task_names()
    asking = [name for name in base.task_names() if base.get_task(name).needs_questions]
    assert enum("pretrain", "QuestionRows", "task") == asking
    assert set(enum("evaluate", "WritePrompts", "orders")) == {
        order for name in base.task_names() for order in base.get_task(name).orders}
    assert enum("evaluate", "EvaluateAdvancedCloze", "template") == ["clean", *RELEASED]
    assert set(enum("evaluate", "EvaluateForm", "metric")) == set(scoring.METRICS)
    assert enum("study", "StudyForm", "study") == list(studies.shipped())
    assert enum("bench", "BenchForm", "preset") == list(presets.presets("cpu"))
    strategies = get_args(stage_specs.EvaluateSpec.model_fields["strategy"].annotation)
    assert enum("evaluate", "EvaluateForm", "strategy") == list(strategies)


def test_a_new_eval_task_shows_up_by_itself(tmp_path, monkeypatch):
    (tmp_path / "riddles.py").write_text("")
    import tasks.evals

    monkeypatch.setattr(tasks.evals, "__path__", [*tasks.evals.__path__, str(tmp_path)])
    choices.eval_tasks.cache_clear()
    try:
        assert "riddles" in forms.ClozeForm.model_json_schema()["properties"]["task"]["enum"]
    finally:
        choices.eval_tasks.cache_clear()


def test_names_of_presets_are_kept_until_a_mixer_or_preset_changes(home, monkeypatch):
    """Their import takes seconds, which every flow run would wait for."""
    asked = []
    monkeypatch.setattr(choices, "_imported", lambda: asked.append(1) or ("a-tiny", "b-tiny"))
    monkeypatch.delitem(sys.modules, "models.presets", raising=False)
    for _ in range(2):
        choices.model_presets.cache_clear()
        assert choices.model_presets() == ("a-tiny", "b-tiny")
    assert asked == [1]
    monkeypatch.setattr(choices, "_fingerprint", lambda: "another")
    choices.model_presets.cache_clear()
    choices.model_presets()
    assert asked == [1, 1]
    choices.model_presets.cache_clear()


def test_a_home_that_cannot_be_written_keeps_no_names(home, monkeypatch):
    home.parent.mkdir(exist_ok=True)
    home.write_text("a file")
    monkeypatch.setattr(choices, "_imported", lambda: ("a-tiny",))
    monkeypatch.delitem(sys.modules, "models.presets", raising=False)
    choices.model_presets.cache_clear()
    assert choices.model_presets() == ("a-tiny",)
    choices.model_presets.cache_clear()


# ------------------------------------------------------------------------------------------ rules that span fields
@pytest.mark.parametrize("form, words", [
    (forms.PretrainForm(advanced={"train": {"workers": 2}}), "Advanced > Training: trainer 'in_process' has one worker"),
    (forms.PretrainForm(advanced={"recall_rows": {"swap_share": 0.1}}, data={"text_steps": 5}),
     "Advanced > Recall rows is changed, but the training data is 'Plain text'"),
    (forms.PretrainForm(data={"text_steps": 5}, advanced={"train": {"micro_batch_rows": 7}}), "not a multiple"),
    (forms.PretrainForm(advanced={"train": {"sweep": {"share": 0.5}}}), "Advanced > Training > Sweep > Values: missing"),
    (forms.PretrainForm(data={"task": "fda", "question_files": ["x"], "question_set": "y"}), "either `paths`"),
    (forms.ClozeForm(task="squad"), "fill in Question files"),
    (forms.EvaluateForm(checkpoint="c", prompts={"task": "fda"}), "fill in Question files"),
    (forms.EvaluateForm(checkpoint="c", prompts={"prompts": "prompts-01"}, advanced={"cloze": {"shots": 1}}),
     "these prompts are written already"),
    (forms.ClozeForm(task="pydocs", orders=["small_first"]), "cannot be asked in the orders"),
    (forms.ClozeForm(orders=["repeat"], advanced={"template": "jrt-2407"}), "has no template"),
    (forms.BenchForm(preset="table5"), "needs one CUDA GPU"),
    (forms.ExtrapolationForm(checkpoint="c", lengths=[512, 256]), "lengths must rise"),
    (forms.EvaluateForm(checkpoint="nothing"), "there is none yet"),
])
def test_what_does_not_fit_is_told_before_anything_starts(home, form, words):
    with pytest.raises(RereadError) as refusal:
        form.to_request().plan(Store())
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("name, sent, usual", [
    ("study", {"advanced": {"file": ""}}, {}), ("pretrain", {"advanced": {"experiment": " "}}, {}),
    ("tokenise", {"tokenizer": "", "corpus": {"dataset": "x", "dataset_config": "", "dataset_split": ""}}, {"corpus": {"dataset": "x"}}),
    ("cloze", {"task": "fda", "question_files": [" /da ta/é "], "question_set": ""}, {"task": "fda", "question_files": ["/da ta/é"]}),
    ("evaluate", {"checkpoint": " checkpoint-01\n"}, {"checkpoint": "checkpoint-01"}),
    ("evaluate", {"checkpoint": "c", "prompts": {"prompts": "prompts-01 "}}, {"checkpoint": "c", "prompts": {"prompts": "prompts-01"}}),
])
def test_an_emptied_box_says_nothing_and_blanks_around_words_do_not_count(name, sent, usual):
    form = forms.FORMS[name]
    assert form.model_validate(sent).to_request() == form.model_validate(usual).to_request()


@pytest.mark.parametrize("name, sent, words", [
    ("evaluate", {"checkpoint": " "}, "checkpoint: got ' '; string should have at least 1 character"),
    ("study", {"study": ""}, "Study: got ''; input should be 'quick'"), ("pretrain", {"model": ""}, "no model preset ''"),
    ("pretrain", {"seed": 2**70}, "seed: got 1180591620717411303424; input should be less than 9007199254740992"),
    ("pretrain", {"advanced": {"train": {"optimiser": {"learning_rate": float("inf")}}}},
     "learning_rate: got inf; input should be a finite number"),
    ("pretrain", {"data": {"task": "fda"}}, "fill in Question files"),
    ("pretrain", {"data": {"task": "fda"}, "advanced": {"questions": {"limit": 3}}}, "fill in Question files"),
    ("cloze", {"task": "pydocs", "question_files": ["x"]}, "task pydocs asks no questions of a data set"),
    ("tokenise", {"corpus": {"paths": "a.txt"}}, "corpus.paths: got 'a.txt'; input should be a list"),
    ("deploy", {"checkpoint": "c", "lengths": []}, "lengths: List should have at least 1 item, not 0"),
])
def test_what_cannot_be_is_told_in_the_words_of_the_page(home, name, sent, words):
    with pytest.raises(RereadError) as refusal:
        read(forms.FORMS[name], sent).to_request().plan(Store())
    assert words in str(refusal.value)


def test_files_may_be_many_and_have_any_name(home):
    names = [f"/da ta/é ü/{number}, [x]; 'y'.txt" for number in range(5000)]
    form = read(forms.TokeniseForm, {"corpus": {"paths": names}})
    assert form.to_request().corpus.paths == tuple(names)
    assert form.to_request().title(Store()) == "tokenise 0, [x]; 'y'.txt and 4999 more with gpt2"


@pytest.mark.parametrize("name", FLOWS)
def test_prefect_itself_can_read_the_form(name):
    asked = FLOWS[name].validate_parameters({"request": NEEDED.get(name, {})})
    assert type(asked["request"]) is forms.FORMS[name]


def test_only_forms_that_need_a_checkpoint_need_anything():
    for name, form in forms.FORMS.items():
        if name in NEEDED:
            with pytest.raises(ValidationError, match="checkpoint"):
                form()
        else:
            form().to_request()


def test_a_form_of_a_name_that_the_command_line_takes_is_refused_alike(home):
    with pytest.raises(SpecError, match="no eval task"):
        forms.ClozeForm(task="sqad").to_request().plan(Store())


def test_forms_are_read_without_torch(home):
    """Where the names of presets are kept, neither a form nor its schema imports it."""
    code = ("import sys\nfrom flows.forms import forms\nforms.PretrainForm.model_json_schema()\nfirst = 'torch' in sys.modules\n"
            "print(first)")
    said = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
            for _ in range(2)]
    assert said[1] == "False"


def test_a_form_is_written_also_without_what_nobody_set():
    """As Prefect writes the parameters of a run that the command line began."""
    asked = requests.StudyRequest(file="own.yaml", settings=("a=1",))
    form = forms.StudyForm.of(asked)
    written = form.model_dump(mode="json", exclude_unset=True)
    assert forms.StudyForm.model_validate(written).to_request() == asked
    assert forms.StudyForm().model_dump(exclude_unset=True) == {}
    assert forms.StudyForm(study="fda").model_dump(mode="json", exclude_unset=True) == {"study": "fda"}
