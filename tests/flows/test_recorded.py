"""Headline numbers and tables from what stages leave: short names, honest means, bounded tables."""

import pytest

from flows.recording import answers
from flows.recording.about import corpus_name, size_of
from flows.recording.recorded import measured_metrics, study_words, training_words
from flows.recording.registering import family, sections
from flows.recording.scored import headline, main_order, score_metrics, score_table, words


def score(column, order, value, control="none", **more):
    return {"column": column, "order": order, "control": control, "value": value, **more}


def test_the_headline_leaves_out_controls_other_orders_and_repeated_items():
    rows = [score("natural", "twice", 0.9), score("natural", "default", 0.4), score("uncommon", "default", 1.0),
            score("swap", "default", 0.2), score("natural", "default", 0.1, "empty"), score("held_out", "default", None)]
    assert main_order(rows) == "default" and headline(rows, "default") == (pytest.approx(0.3), ["natural", "swap"])
    assert main_order([score("a", "small_first", 1.0), score("a", "large_first", 0.0)]) == "small_first"
    assert headline([], "default") == (None, [])


ROWS = [score("4|8", "twice", 0.912345, low=0.8, high=1.0, n=9, above_controls={"difference": 0.5, "low": 0.4, "high": 0.6},
              errors={"other": 0.1}, controls={"empty": {"value": 0.1}, "other": {"value": 0.2}}, metric="f1",
              also={"f1": {"value": 0.912345}, "exact": {"value": 0.3}}, task="disjoint"),
        score("4|8", "twice", 0.1, "empty"), score("a/b", "twice", None)]


def test_a_metric_is_a_score_and_its_order_the_group():
    assert score_metrics(ROWS) == {"recall/twice/4|8": 0.912345}
    assert list(score_metrics([score("a/b", "twice", 1.0)])) == ["recall/twice/a_b"]


def test_everything_else_of_the_scores_is_one_table():
    first, second = score_table(ROWS)
    assert list(first)[:5] == ["score", "recall", "low", "high", "highest_control"] and first["score"] == "4|8, twice"
    assert {"recall": 0.9123, "highest_control": 0.2, "above_controls": 0.5, "above_low": 0.4, "control_empty": 0.1,
            "share_other": 0.1, "exact": 0.3, "task": "disjoint"}.items() <= first.items() and "f1" not in first
    assert second["recall"] is second["highest_control"] is None


def test_an_evaluation_in_a_few_words():
    told = words(ROWS, {"recall": 0.912345, "recall/low": 0.8, "recall/high": 1.0}, "LINKS").splitlines()
    assert told[0] == "**recall 0.912** [0.800, 1.000], mean over 4|8 in the order twice." and told[2] == "LINKS"
    cells = [cell.replace("&emsp;", "").strip() for cell in told[6].replace("\\|", "/").split("|")[1:-1]]
    assert cells == ["4/8", "twice", "0.912", "[0.800, 1.000]", "0.200", "0.500 [0.400, 0.600]", "9"]
    many = words([score(str(n), "twice", 1.0) for n in range(20)], {}, "")
    assert many.endswith("8 more in `scores.json`.") and many.startswith("**recall –**, mean over 0, 1")


def test_many_columns_leave_room_for_the_links_and_odd_ones_for_the_table():
    many = words([score(f"a column with a rather long name, number {n}", "twice", 1.0) for n in range(200)], {}, "LINKS")
    assert many.splitlines()[0].endswith("number 11 and 188 more in the order twice.") and len(many) < 8000
    odd = words([score("two\nlines", "twice", 1.0)], {}, "").splitlines()
    assert odd[0].endswith("mean over two lines in the order twice.") and odd[-1].startswith("| two lines&emsp; |")


def test_a_training_and_a_study_in_a_few_words():
    assert training_words({"validation_bits_per_byte": 2.0612, "loss": 4.1149, "tokens": 10240, "steps": 20}, "checkpoint-1") == (
        "**validation bits per byte 2.061**, **last loss 4.115** after 10,240 tokens in 20 steps. Checkpoint `checkpoint-1`.")
    assert training_words({}, "checkpoint-1") == "Trained. Checkpoint `checkpoint-1`."
    report = "# Study `x`\n\nAbout it.\n\n## What was measured\n\n* good 0.9\n\n![plot](a.png)\n\n## Tables\n\nmany"
    told = study_words(report, "#/page", "#/runs")
    assert told == "[Report](#/page) · [Runs by recall](#/runs)\n\nAbout it.\n\n### What was measured\n\n* good 0.9"
    assert study_words("# Only a title", "#/page", "#/runs") == "[Report](#/page) · [Runs by recall](#/runs)"
    assert len(study_words("# A\n\n" + "words\n\n" * 2000, "#/page", "#/runs")) <= 5000


def test_a_version_shows_what_the_card_says_of_the_model():
    card = "---\na: b\n---\n\n# checkpoint\n\nA model.\n\n## Architecture\n\n| a |\n\n## Loading\n\ncode\n\n## Data\n\nrows\n"
    assert sections(card) == "### Architecture\n\n| a |\n\n### Data\n\nrows"
    assert "`models:/quick-pydocs@best-tiny`" in family("quick-pydocs", {"size": "tiny", "workload": "pydocs"})


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
