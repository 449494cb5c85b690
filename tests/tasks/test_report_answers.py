"""What a report shows of evaluations with settings: how each was asked, all metrics, errors, averages, published figures."""

import functools
import json

import numpy as np
import pyarrow as pa
import pytest

from storage.artifacts import Store
from storage.errors import SpecError
from storage.shards import ShardWriter
from tasks import report
from tasks.reporting import averages, compare, error_plot, published, recall_tables
from tasks.reporting.gather import Answers, Gathered, Panel
from tasks.reporting.settings import setting
from tasks.specs import EvaluationPlan, StudySpec
from tests.tasks.test_report import checkpoint

METRICS = ("contains", "exact", "squad_exact", "f1", "rouge_l")
SCHEMA = pa.schema([("item", pa.string()), ("document", pa.string()), ("task", pa.string()), ("column", pa.string()),
                    ("order", pa.string()), ("control", pa.string()), ("correct", pa.float32()), ("uncommon", pa.bool_()),
                    *((name, pa.float32()) for name in METRICS), ("error", pa.string())])
NINE = [("fda", 512), ("fda", 1024), ("swde", 512), ("swde", 1024), ("nq", 512), ("nq", 1024), ("squad", 2000),
        ("triviaqa", 2000), ("drop", 2000)]


def evaluation(task: str, tokens: int, name: str = "", **evaluate) -> dict:
    return {"name": name or f"{task} {tokens}", "questions": {"task": task, "paths": ["x"]},
            "cloze": {"task": task, "document_tokens": tokens, "orders": ["default", "twice"]}, "evaluate": evaluate}


def study(evaluations: list[dict], claims: dict | None = None, names=("jrt", "based")) -> StudySpec:
    return StudySpec.model_validate({
        "name": "toy", "about": "A toy.", "estimated_minutes": 1, "claims": claims or {},
        "workloads": {"text": {"architectures": {name: {"model": "jrt-mini"} for name in names},
                               "evaluations": evaluations}}})


def share(name: str, label: str, order: str) -> float:
    """Known to the tests: the first 5 of 10 documents; when jrt reads twice, 8 of a short text and 4 of a long one."""
    return 0.5 if (name, order) != ("jrt", "twice") else 0.8 if "512" in label else 0.4


def scores(store: Store, name: str, label: str, documents: int = 10) -> str:
    def write(folder):
        with ShardWriter(folder / "predictions.arrow", SCHEMA) as writer:
            for order in ("default", "twice"):
                for control in ("none", "empty", "other"):
                    right = share(name, label, order) if control == "none" else 0.0
                    for i in range(documents):
                        correct = float(i < right * documents)
                        writer.append({"item": f"i{i}", "document": f"d{i}", "task": label.split()[0], "column": "natural",
                                       "order": order, "control": control, "correct": correct, "uncommon": False,
                                       "contains": correct, "exact": correct / 2, "squad_exact": 0.0, "f1": 0.25, "rouge_l": 1.0,
                                       "error": "" if correct else ("repetition" if i % 2 else "no_answer")})
        (folder / "scores.json").write_text(json.dumps([{"metric": "contains"}]))

    return store.produce("scores", {"name": name, "label": label}, {}, "code", write)


def made(evaluations: list[dict], **options) -> tuple[StudySpec, Store, dict]:
    store, toy = Store(), study(evaluations, **options)
    names, labels = ("jrt", "based"), [one["name"] for one in evaluations]
    questions = store.produce("questions", {}, {}, "code", lambda folder: {"rejected": {"answer_not_in_document": 4}})
    prompts = {label: store.produce("prompts", {"label": label}, {"questions": questions}, "code",
                                    lambda folder: {"rejected": {"too_long": 2}}) for label in labels}
    return toy, store, {"timings": None, "workloads": {"text": {
        "prompts": prompts, "checkpoints": {f"{name}/0": checkpoint(store, name) for name in names},
        "scores": {f"{name}/0/{label}": scores(store, name, label) for name in names for label in labels}}}}


@functools.cache
def _page(arguments: str) -> tuple[str, dict[str, list[dict]], dict]:
    evaluations, options = json.loads(arguments)
    assembled = report.assemble(*made(evaluations, **options))
    tables = {table.name: [dict(zip(table.columns, row)) for row in table.rows] for table in assembled.tables()}
    text = "\n".join([assembled.findings(), *(table.markdown() for table in assembled.tables())])
    return text, tables, json.loads(json.dumps(report._findings(assembled)))


def page(evaluations: list[dict], **options) -> tuple[str, dict[str, list[dict]], dict]:
    """The words and tables of the page, and its findings; the same report is made once. Without figures, which take long."""
    return _page(json.dumps([evaluations, options]))


# ------------------------------------------------------------------------------------------------------------ settings
def test_every_table_of_scores_says_how_it_was_asked(home):
    text, tables, found = page([evaluation("fda", 512, "one"), evaluation("fda", 512, "two", strategy="iterate")])
    for name in ("recall-text", "metrics-text", "errors-text"):
        asked = {row["task / column"]: row["asked"] for row in tables[name]}
        assert asked == {"one / natural": "left_pad, clean, 0-shot, contains",
                         "two / natural": "iterate, clean, 0-shot, contains"}, name
    assert "one / natural: left_pad, clean, 0-shot, contains. two / natural: iterate" in text
    assert {row["asked"] for row in tables["averages"]} <= {"iterate, clean, 0-shot, contains"} if "averages" in tables else True
    assert {row["asked"] for row in found["recall"]} == {"left_pad, clean, 0-shot, contains", "iterate, clean, 0-shot, contains"}


def test_a_setting_names_template_shots_metric_and_what_stays_out_of_the_prefix():
    plan = EvaluationPlan.model_validate({"cloze": {"task": "fda", "template": "jrt-2407", "shots": 2},
                                          "evaluate": {"strategy": "reread", "keep_out": "none", "metric": "f1"}})
    assert setting(plan).short == "reread (keep_out none), jrt-2407, 2-shot, f1"
    assert setting(plan, "exact").short.endswith("2-shot, exact")


def test_settings_of_the_same_items_are_compared(home):
    _, tables, found = page([evaluation("fda", 512, "one"), evaluation("fda", 512, "two 2000", strategy="iterate")])
    settings = [row for row in tables["differences"] if row["about"] == "setting"]
    assert {(row["held fixed"], row["first"], row["second"]) for row in settings} == {
        (f"{name}, {order}", "two 2000", "one") for name in ("jrt", "based") for order in ("default", "twice")}
    other = page([evaluation("fda", 512), evaluation("fda", 1024)])[1]
    assert not any(row["about"] == "setting" for row in other["differences"])       # another cut is another question


# ------------------------------------------------------------------------------------------------------------- metrics
def test_all_metrics_stand_beside_each_other(home):
    row = next(row for row in page([evaluation("fda", 512)])[1]["metrics-text"] if row["architecture"] == "jrt")
    assert [row[name].split(" ")[0] for name in METRICS] == ["0.500", "0.250", "0.000", "0.250", "1.000"]
    assert row["contains"].startswith("0.500 [0.2") and row["n"] == "10"


def test_errors_add_up_and_are_drawn(home):
    tables = page([evaluation("fda", 512)])[1]
    row = next(row for row in tables["errors-text"] if (row["architecture"], row["order"]) == ("based", "default"))
    assert (row["right"], row["repetition"], row["no_answer"]) == ("0.500", "0.300", "0.200")


def test_the_figures_of_a_study_with_errors(home):
    toy, store, results = made([evaluation("fda", 512)])
    names = {path.name for path in store.path(report.run(toy, store, results)).iterdir()}
    assert {"errors.png", "recall.png", "errors-text.csv", "metrics-text.csv", "differences.csv", "rejected.csv"} <= names


def test_stacked_bars_fill_the_axis(tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    ends = {}
    real = plt.Axes.barh
    monkeypatch.setattr(plt.Axes, "barh", lambda self, y, width, **named: (
        ends.__setitem__(y, named["left"] + width), real(self, y, width, **named))[1])
    error_plot.stacked([{"panel": "p", "name": "a", "shares": {"right": 0.25, "no_answer": 0.75}},
                        {"panel": "p", "name": "b", "shares": {"right": 1.0, "no_answer": 0.0}}],
                       ["right", "no_answer"], tmp_path / "x.png")
    assert ends == {0: 1.0, 1: 1.0} and (tmp_path / "x.png").stat().st_size > 1000


def test_what_was_rejected_is_listed_by_stage_and_reason(home):
    rows = {(row["evaluation"], row["stage"], row["reason"]): row["count"] for row in page([evaluation("fda", 512)])[1]["rejected"]}
    assert rows == {("fda 512", "questions", "answer not in document"): "4", ("fda 512", "prompts", "too long"): "2"}


# ------------------------------------------------------------------------------------------------------------ averages
def test_what_evaluations_share_is_rejected_once(home):
    rows = page([evaluation("fda", 512), evaluation("fda", 1024)])[1]["rejected"]
    assert sorted((row["evaluation"], row["stage"], row["count"]) for row in rows) == [
        ("fda 1024", "prompts", "2"), ("fda 512", "prompts", "2"), ("fda 512, fda 1024", "questions", "4")]


def test_the_nine_columns_are_averaged_over_columns_and_over_data_sets(home):
    text, tables, _ = page([evaluation(*one) for one in NINE])
    rows = {(row["architecture"], row["order"]): row for row in tables["averages"]}
    assert rows["jrt", "default"]["over columns"].startswith("0.500")
    short = [0.8, 0.4, 0.8, 0.4, 0.8, 0.4, 0.4, 0.4, 0.4]
    sets = [0.6, 0.6, 0.6, 0.4, 0.4, 0.4]
    assert rows["jrt", "twice"]["over columns"].split(" ")[0] == f"{np.mean(short):.3f}"
    assert rows["jrt", "twice"]["over data sets"].split(" ")[0] == f"{np.mean(sets):.3f}"
    assert rows["jrt", "twice"]["columns"].startswith("9: fda 512") and rows["jrt", "twice"]["data sets"].startswith("6: fda")
    assert "over 9 columns" in text and "over 6 data sets" in text


def test_the_mixture_of_the_published_table_reads_twice_at_the_shorter_length_alone(home):
    """jrt-mini reads prefixes: at 512 tokens its score is that of `twice`, elsewhere that of `default`."""
    rows = {(row["architecture"], row["order"]): row for row in page([evaluation(*one) for one in NINE])[1]["averages"]}
    assert rows["jrt", averages.MIXED]["over columns"].split(" ")[0] == "0.600"
    assert rows["based", averages.MIXED]["over columns"].split(" ")[0] == "0.500"
    assert averages.MIXED not in {row["order"] for row in page([evaluation("fda", 512), evaluation("drop", 512)])[1]["averages"]}


def test_strategies_are_not_averaged_with_each_other(home):
    tables = page([evaluation("fda", 512, "fda"), evaluation("drop", 512, "drop"),
                   evaluation("fda", 512, "fda iterate", strategy="iterate"),
                   evaluation("drop", 512, "drop iterate", strategy="iterate")])[1]
    assert {row["columns"] for row in tables["averages"]} == {"2: fda, drop", "2: fda iterate, drop iterate"}
    assert "averages" not in page([evaluation("fda", 512, "one"), evaluation("fda", 512, "two", strategy="iterate")])[1]


def test_columns_of_one_data_set_are_resampled_together():
    """The same documents twice carry no more than once: the interval of their average is that of one."""
    random = np.random.default_rng(0)
    items = np.array([f"i{i:02}" for i in range(40)])
    one = Answers(items, items, (random.random(40) < 0.5).astype(float))
    other = Answers(items, items, (random.random(40) < 0.5).astype(float))
    widths = {}
    for name, tasks, columns in (("same", ["fda", "fda"], (one, one)), ("apart", ["fda", "drop"], (one, one)),
                                 ("alone", ["fda"], (one,)), ("seeds", ["fda"], (one, other))):
        chosen = [dict(enumerate(columns))] if name == "seeds" else [{0: each} for each in columns]
        points, draws = averages._resampled(chosen, tasks, 4000, 0)
        low, high = np.quantile(draws.mean(1), [0.025, 0.975])
        widths[name] = high - low
        assert draws.mean() == pytest.approx(points.mean(), abs=0.01)
    assert widths["same"] == pytest.approx(widths["alone"], rel=0.05)
    assert widths["apart"] == pytest.approx(widths["alone"] / 2**0.5, rel=0.1)


def test_a_column_that_no_resample_has_to_have_keeps_its_mean():
    """One of a data set's 40 documents is asked in the second column: where it is not drawn, that is no wrong answer."""
    items, values = np.array([f"i{i:02}" for i in range(40)]), (np.arange(40) % 2).astype(float)
    many, lone = Answers(items, items, values), Answers(items[:1], items[:1], np.ones(1))
    points, draws_RC = averages._resampled([{0: many}, {0: lone}], ["fda", "fda"], 2000, 0)
    assert (draws_RC[:, 1] == points[1]).all() and draws_RC[:, 0].std() > 0.05


# ----------------------------------------------------------------------------------------------------------- published
CLAIM = "jrt_t4_360m_30b_read_2x_fda512"
CELL = "text/jrt/fda 512/natural/twice"


def test_a_row_links_to_its_claim_or_says_that_none_was_published(home):
    text, tables, found = page([evaluation("fda", 512), evaluation("drop", 512)], claims={CELL: CLAIM})
    rows = {(row["task / column"], row["architecture"]): row["published"] for row in tables["recall-text"]}
    assert rows["fda 512 / natural", "jrt"] == f"twice: 0.820 ({CLAIM})"
    assert rows["fda 512 / natural", "based"] == rows["drop 512 / natural", "jrt"] == "none published"
    for name, rows in tables.items():
        if name not in ("published", "training", "data", "differences", "rejected"):
            assert all(row["published"] for row in rows), name
    assert "1 of 8 scores stand beside a published figure" in text
    assert [row["published"] for row in found["recall"] if row["published"]] == [
        [{"claim_id": CLAIM, "value": 82.0, "unit": "percent"}]]
    assert "none published" in text.split("### Training")[1].split("###")[0]


def test_published_stands_beside_measured_with_what_differs(home):
    [row] = page([evaluation("fda", 512)], claims={CELL: CLAIM})[1]["published"]
    assert (row["here"].split(" ")[0], row["published"], row["claim"], row["where"]) == ("0.800", "0.820", CLAIM, "JRT Table 4, p. 9")
    for words in ("360 M parameters, here 0.1 M", "30 B training tokens, here 0.0 M", "trained on Pile, here fda samples"):
        assert words in row["what differs"]
    assert "512" not in row["what differs"] and "Read-2x" not in row["what differs"]      # these two are the same


@pytest.mark.parametrize("changes, words", [
    ({"document_tokens": 64}, "512 tokens, here 64"), ({"order": "default"}, "Read-2x, here left_pad in the order default"),
    ({"setting": "iterate, clean, 0-shot, contains"}, "Read-2x, here iterate"),
    ({"setting": "left_pad_released, clean, 0-shot, contains", "parameters": 360_000_000}, None), ({"parameters": 360_000_000}, None),
    ({"tokens": None}, "30 B training tokens, here unknown")])
def test_conditions_are_told_where_they_differ(changes, words):
    same = {"parameters": 100_000, "tokens": 1_000_000, "document_tokens": 512, "order": "twice",
            "setting": "left_pad, clean, 0-shot, contains"}
    text = published.differs(published.load().get(CLAIM), published.Here(**same | changes))
    assert words in text if words else "parameters" not in text and "Read-2x" not in text


def test_averages_stand_beside_published_ones(home):
    claims = {"text/jrt/average/columns/" + averages.MIXED: "jrt_t2_jrt_rnn_360m_30b_avg, jrt_t2_jrt_rnn_1p3b_50b_avg"}
    _, tables, found = page([evaluation(*one) for one in NINE], claims=claims)
    row = next(row for row in tables["averages"] if (row["architecture"], row["order"]) == ("jrt", averages.MIXED))
    assert row["published"] == "0.429 (jrt_t2_jrt_rnn_360m_30b_avg); 0.495 (jrt_t2_jrt_rnn_1p3b_50b_avg)"
    assert row["published "] == "none published"
    assert [row["claim"] for row in tables["published"]] == ["jrt_t2_jrt_rnn_360m_30b_avg", "jrt_t2_jrt_rnn_1p3b_50b_avg"]
    assert sum(bool(row["published"]) for row in found["averages"]) == 1


def test_errors_stand_beside_published_ones(home):
    claims = {"text/based/fda 512/repetition/default": "jrt_t13_mamba_2p8b_squad_repetition_default"}
    rows = page([evaluation("fda", 512)], claims=claims)[1]["errors-text"]
    assert {row["published"] for row in rows} == {
        "none published", "repetition: 0.055 (jrt_t13_mamba_2p8b_squad_repetition_default)"}


def test_an_unknown_claim_is_named(home):
    with pytest.raises(SpecError, match="no claim 'jrt_t4_360m_30b_read_3x_fda512'; did you mean"):
        page([evaluation("fda", 512)], claims={CELL: "jrt_t4_360m_30b_read_3x_fda512"})


# ------------------------------------------------------------------------------------------------ multiple comparisons
PANEL = Panel("text", "fda", "natural")


def gathered(shares: dict[str, float], items: int = 60) -> Gathered:
    found = {}
    for number, (name, right) in enumerate(shares.items()):
        random = np.random.default_rng(number)
        names = np.array([f"i{i:03}" for i in range(items)])
        found[name, 0, "default", "none"] = Answers(names, names, (random.random(items) < right).astype(float))
    return Gathered(answers={PANEL: found})


def test_a_large_difference_holds_and_a_narrow_one_does_not_when_many_are_tested():
    """A p of 0.03 is found alone, and lost among 32."""
    names = np.array([f"i{i:03}" for i in range(100)])
    half = np.arange(100) % 2.0
    narrow = half.copy()
    narrow[:8:2] = 1.0                                        # four gained, none lost: zero in 0.96^100 of the resamples
    found = Gathered(answers={PANEL: {
        (name, 0, "default", "none"): Answers(names, names, values) for name, values in
        (("base", half), ("narrow", narrow), ("large", np.ones(100)), *((f"same{k}", half.copy()) for k in range(30)))}})
    pairs = [("narrow", "base"), ("large", "base"), *((f"same{k}", "base") for k in range(30))]
    few = compare.holm(compare.between_architectures(found, PANEL, pairs[:1], "default", 2000, 0))
    many = compare.holm(compare.between_architectures(found, PANEL, pairs, "default", 2000, 0))
    assert few[0].significant and few[0].holds
    assert many[0].significant and not many[0].holds and many[1].holds
    assert not any(one.holds for one in many[2:])
    assert "(holds after Holm's correction)" in many[1].sentence and "Holm" not in many[0].sentence


def test_holm_steps_down():
    """With two tests the larger p is judged at 5 %, once the smaller is found at 2.5 %."""
    from tasks.statistics import Interval

    def difference(p: float) -> compare.Difference:
        def at(level, resamples):
            return Interval(1.0, 0.1 if p < 1 - level + 1e-12 else -0.1, 2.0, 10, 10)

        return compare.Difference(PANEL, "a", "b", "architecture", "default", at(0.95, 0), again=at)

    assert [one.holds for one in compare.holm([difference(0.04), difference(0.02)])] == [True, True]
    assert [one.holds for one in compare.holm([difference(0.04), difference(0.03)])] == [False, False]
    assert [one.holds for one in compare.holm([difference(0.02), difference(0.2), difference(0.01)])] == [True, False, True]


def test_the_report_says_how_many_hold(home):
    text, tables, found = page([evaluation("fda", 512)])
    holds = sum(row["holds after Holm"] == "yes" for row in tables["differences"])
    assert f"{holds} of these hold after Holm's correction over all {len(tables['differences'])}" in text
    assert sum(row["holds_after_holm"] for row in found["differences"]) == holds


def test_classes_are_in_their_order_and_none_is_lost():
    class Toy:
        found = Gathered(answers={PANEL: {("a", 0, "default", "none"): Answers(
            np.array(["a", "b", "c"]), np.array(["a", "b", "c"]), np.zeros(3),
            errors_N=np.array(["new_class", "no_answer", "unrelated"]))}})

    assert recall_tables.classes(Toy) == ["no_answer", "unrelated", "new_class"]
