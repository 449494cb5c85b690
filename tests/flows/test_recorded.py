"""Headline numbers and tables from what stages leave: short names, honest means, bounded tables."""

import pytest

from flows.recording import answers
from flows.recording.about import corpus_name, size_of
from flows.recording.recorded import headline, main_order, measured_metrics, score_metrics


def score(column, order, value, control="none", **more):
    return {"column": column, "order": order, "control": control, "value": value, **more}


def test_the_headline_leaves_out_controls_other_orders_and_repeated_items():
    rows = [score("natural", "twice", 0.9), score("natural", "default", 0.4), score("uncommon", "default", 1.0),
            score("swap", "default", 0.2), score("natural", "default", 0.1, "empty"), score("held_out", "default", None)]
    assert main_order(rows) == "default" and headline(rows, "default") == (pytest.approx(0.3), ["natural", "swap"])
    assert main_order([score("a", "small_first", 1.0), score("a", "large_first", 0.0)]) == "small_first"
    assert headline([], "default") == (None, [])


def test_scores_become_metrics_by_column_and_order():
    rows = [score("natural", "twice", 0.9, above_controls={"difference": 0.5}, errors={"other": 0.1}),
            score("natural", "twice", 0.1, "empty")]
    assert score_metrics(rows) == {"recall/natural/twice": 0.9, "control/empty/natural/twice": 0.1,
                                   "above_controls/natural/twice": 0.5, "errors/other/natural/twice": 0.1}


def test_measurements_have_short_names():
    rows = [{"slice": "all", "loss": 2.0, "bits_per_byte": 1.0, "perplexity": 7.4}, {"slice": "rare", "perplexity": 9.0}]
    assert measured_metrics("perplexity", rows) == {0: {"loss": 2.0, "bits_per_byte": 1.0, "perplexity": 7.4,
                                                        "perplexity/rare": 9.0}}
    rows = [{"length": 128, "tokens_per_s": 50.0, "ttft_ms": 3.0, "state_bytes": None}, {"length": 256, "tokens_per_s": None}]
    assert measured_metrics("deploy", rows) == {0: {}, 128: {"tokens_per_second": 50.0, "ttft_ms": 3.0}, 256: {}}
    rows = [{"length": 64, "overridden": True, "perplexity": 2.0, "loss": 0.7}, {"length": 64, "perplexity": None},
            {"length": 256, "perplexity": 8.0, "loss": 2.1}, {"length": 128, "perplexity": 9.0, "loss": 2.2}]
    assert measured_metrics("extrapolation", rows) == {0: {"perplexity": 9.0, "loss": 2.2}}
    assert measured_metrics("extrapolation", []) == {0: {}}


@pytest.mark.parametrize("preset, size", [("jrt-tiny", "tiny"), ("based-1.3b", "1-3b"), ("transformer-mini", "mini"),
                                          ("a-b_C d", "b-c-d"), ("whole", "whole")])
def test_a_size_fits_into_an_alias(preset, size):
    assert size_of(preset) == size


def test_corpora_have_names_without_folders():
    assert corpus_name({"source": "files", "paths": ["/far/away/books-*.jsonl"]}) == "books-*.jsonl"
    assert corpus_name({"source": "huggingface", "dataset": "a/b"}) == "a/b" and corpus_name({"source": "pydocs"}) == "pydocs"


def line(number, error="", column="natural"):
    return {"item": str(number), "column": column, "order": "default", "control": "none", "error": error}


def test_a_table_is_bounded_and_keeps_what_is_rare():
    rows = [line(n) for n in range(5000)] + [line(n, "other") for n in range(5000, 5010)] + [line(9999, column="swap")]
    chosen = answers.spread(rows)
    assert len(chosen) <= answers.ROWS and len(chosen) > 0.9 * answers.ROWS
    assert sum(row["error"] == "other" for row in chosen) == 10 and any(row["column"] == "swap" for row in chosen)
    assert answers.spread(rows[:answers.ROWS]) == rows[:answers.ROWS]
    many = [line(n, column=str(n)) for n in range(1000)]
    assert len(answers.spread(many)) == answers.ROWS


def test_a_prompt_is_shown_by_its_end():
    text = "x" * 1000 + " the question"
    assert answers.ending(text).endswith("the question") and answers.ending(text).startswith("[773 characters] …")
    assert answers.ending("short") == "short"
