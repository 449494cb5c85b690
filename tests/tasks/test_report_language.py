"""What a report shows of reading text: perplexity by slice and by length, and the costs of serving beside recall."""

import json

import pytest

from storage.artifacts import Store
from tasks import report
from tasks.reporting import language
from tasks.specs import StudySpec
from tests.tasks.test_report import checkpoint, scores

NAMES = ("good", "bad")


def figures(perplexity: float | None, **more) -> dict:
    low, high = (None, None) if perplexity is None else (perplexity - 1, perplexity + 1)
    return {"n": 0 if perplexity is None else 1000, "sequences": 10, "perplexity": perplexity, "low": low, "high": high,
            "bits_per_byte": None if perplexity is None else perplexity / 10, **more}


def slices(perplexity: float) -> list[dict]:
    def row(name, kind, low, high, value, condition=""):
        return {"slice": name, "kind": kind, "from": low, "to": high, "condition": condition, "share": 0.25, **figures(value)}

    return [row("all", "all", None, None, perplexity), row("kind", "ar", None, None, perplexity / 2),
            row("kind", "other", None, None, perplexity * 2), row("frequency", "ar", 0, 10, 7.0, "distance >= 64"),
            row("frequency", "ar", 10, None, None, "distance >= 64"), row("distance", "ar", 64, None, 9.0, "training count < 1000")]


def lengths(first: float) -> list[dict]:
    return [{"protocol": "blocks", "window": None, "overridden": 0, "length": length, "from": 0, "to": length, "cannot": cannot,
             "note": "", "state_bytes": 1, "tokens_per_second": 1.0, **figures(value)}
            for length, value, cannot in ((256, first, None), (384, first + 5, None), (512, None, "its state grows"))]


def deploys() -> list[dict]:
    return [{"length": 120, "ttft_ms": 12.34, "tokens_per_s": 987.6, "state_bytes": 65_000, "peak_bytes": 1_000_000, "error": 1e-6,
             "tolerance": 1e-3, "contended": False, "reason": None},
            {"length": 4096, "ttft_ms": None, "tokens_per_s": None, "state_bytes": None, "peak_bytes": None, "error": None,
             "tolerance": 1e-3, "contended": None, "reason": "too long"}]


def made(claims: dict | None = None, seeds=(0,)) -> tuple[StudySpec, Store, dict]:
    store = Store()
    study = StudySpec.model_validate({
        "name": "toy", "about": "A toy.", "estimated_minutes": 1, "claims": claims or {},
        "workloads": {"books": {"architectures": {name: {"model": "jrt-mini"} for name in NAMES}, "seeds": seeds,
                                "tokenise": {"tokenizer": "bytes", "row_tokens": 256},
                                "evaluations": [{"cloze": {"task": "pydocs", "document_tokens": 120}}]}}})

    def artifacts(kind: str, file: str, rows) -> dict[str, str]:
        return {f"{name}/{seed}/read": store.produce(kind, {"name": name, "seed": seed}, {}, "code", lambda folder, at=place: (
            folder / file).write_text(json.dumps(rows(at))) and None) for seed in seeds for place, name in enumerate(NAMES)}

    return study, store, {"timings": None, "workloads": {"books": {
        "prompts": {}, "checkpoints": {f"{name}/{seed}": checkpoint(store, name) for name in NAMES for seed in seeds},
        "scores": {f"{name}/{seed}/pydocs": scores(store, f"{name}-{place}", 0.8, 0.02, ("default",))
                   for place, name in enumerate(NAMES) for seed in seeds},
        "perplexities": artifacts("perplexity", "perplexity.json", lambda place: slices(20.0 + 10 * place)),
        "extrapolations": artifacts("extrapolation", "extrapolation.json", lambda place: lengths(16.0 + place)),
        "deploys": artifacts("deploy", "deploy.json", lambda place: deploys())}}}


def tables(**options) -> tuple[dict[str, list[dict]], str]:
    assembled = report.assemble(*made(**options))
    found = {table.name: [dict(zip(table.columns, row)) for row in table.rows] for table in assembled.tables()}
    return found, "\n".join([assembled.findings(), *(table.markdown() for table in assembled.tables())])


def test_slices_stand_side_by_side_with_intervals_and_bits(home):
    found, text = tables()
    rows = {row["slice"]: row for row in found["slices-books"]}
    assert rows["all tokens"]["good"] == "20.00 [19.00, 21.00] / 2.000" and rows["all tokens"]["bad"].startswith("30.00")
    assert rows["recall tokens"]["good"].startswith("10.00") and rows["all tokens"]["share"] == "0.250"
    assert "recall tokens, training count 0 to 9 (distance >= 64)" in rows
    assert "recall tokens, distance 64 or more (training count < 1000)" in rows
    assert not any("10 or more" in name for name in rows)                     # nothing fell into it
    assert {row["published"] for row in rows.values()} == {"none published"}
    assert "perplexity 20.00 [19.00, 21.00] / 2.000 of all tokens, 10.00" in text


def test_lengths_say_how_many_times_the_trained_one_and_why_one_is_missing(home):
    found, text = tables(claims={"books/good/read/blocks/x1": "lavo_t2_lavo_ppl8192", "books/good/read/blocks/x1.5": "lavo_t2_lavo_ppl12288"})
    row = next(row for row in found["lengths-books"] if row["architecture"] == "good")
    assert row["256 (x1)"].startswith("16.00 [15.00, 17.00]") and row["384 (x1.5)"].startswith("21.00") and row["512 (x2)"] == "–"
    assert row["window"] == "as trained"
    assert "Not read: good at 512: its state grows; bad at 512: its state grows." in text
    assert row["published"] == "x1: 19.43 ppl (lavo_t2_lavo_ppl8192); x1.5: 19.41 ppl (lavo_t2_lavo_ppl12288)"
    beside = {row["claim"]: row for row in found["published"]}
    assert beside["lavo_t2_lavo_ppl8192"]["here"] == "16.00" and "8192 tokens, here 256" in beside["lavo_t2_lavo_ppl8192"]["what differs"]


def test_serving_costs_stand_beside_recall_of_that_length(home):
    found, text = tables()
    short, long = (row for row in found["deploy-books"] if row["architecture"] == "good")
    assert (short["time to first token"], short["tokens/s"], short["state"], short["peak"]) == ("12.3 ms", "988", "65.0 kB", "1.0 MB")
    recall = next(row for row in found["recall-books"] if (row["task / column"], row["architecture"]) == ("pydocs / natural", "good"))
    assert short["recall"] == recall["default"] and short["order"] == "default" and float(short["control"]) < 0.1
    assert (long["recall"], long["peak"], long["time to first token"]) == ("–", "too long", "–")
    assert {row["published"] for row in found["deploy-books"]} == {"none published"}


def test_figures_of_reading_are_drawn(home):
    folder = (lambda toy, store, results: store.path(report.run(toy, store, results)))(*made())
    assert {"perplexity-by-distance-books-read.png", "perplexity-by-frequency-books-read.png",
            "perplexity-by-length-books-read.png", "slices-books.csv", "lengths-books.csv", "deploy-books.csv"} <= {
                path.name for path in folder.iterdir()}


def test_seeds_have_columns_of_their_own(home):
    found, _ = tables(seeds=(0, 1))
    assert {"good, seed 0", "good, seed 1"} <= set(found["slices-books"][0])


@pytest.mark.parametrize("length, name", [(256, "x1"), (384, "x1.5"), (16384, "x64")])
def test_lengths_are_named_by_the_trained_one(length, name):
    assert language.times(length, 256) == name


def test_a_bucket_of_one_value_is_that_value():
    row = {"slice": "frequency", "kind": "ar", "condition": ""}
    assert [language.slice_name(row | {"from": low, "to": high}) for low, high in ((0, 1), (1, 10), (10, None))] == [
        "recall tokens, training count 0", "recall tokens, training count 1 to 9", "recall tokens, training count 10 or more"]


def test_what_is_only_read_counts_state_and_work_over_a_training_row(home):
    study, _, _ = made()
    assert report._document_length(study, "books") == 120
    work = study.workloads["books"].model_copy(update={"evaluations": ()})
    assert report._document_length(study.model_copy(update={"workloads": {"books": work}}), "books") == 256
