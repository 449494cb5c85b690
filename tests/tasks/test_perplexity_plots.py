"""Figures: every model and interval drawn, gaps for what is not there, reasons in words."""

import matplotlib.pyplot as plt
import pytest

from tasks import perplexity_plots as plots

MODELS = ["based", "jrt"]


def slice_rows() -> list[dict]:
    found = []
    for k, model in enumerate(MODELS):
        for kind in ("ar", "other"):
            for number, (low, high) in enumerate([(0, 1), (1, 10), (10, None)]):
                gone = kind == "ar" and number == 1 and model == "jrt"
                value = None if gone else 50.0 - 10 * number - 5 * k
                found.append({"model": model, "slice": "frequency", "kind": kind, "from": low, "to": high,
                              "condition": "distance >= 8" if kind == "ar" else "", "perplexity": value,
                              "low": None if gone else value - 2, "high": None if gone else value + 3})
        for low, high in [(1, 8), (8, None)]:
            found.append({"model": model, "slice": "distance", "kind": "ar", "from": low, "to": high, "condition": "count < 9",
                          "perplexity": 9.0 + low + k, "low": 8.0 + low + k, "high": 10.0 + low + k})
        found.append({"model": model, "slice": "distance", "kind": "other", "from": None, "to": None, "condition": "count < 9",
                      "perplexity": 90.0, "low": 80.0, "high": 95.0})
    return found


def length_rows() -> list[dict]:
    return [{"model": model, "protocol": protocol, "window": window, "length": length, "perplexity": value,
             "low": value and value - 1, "high": value and value + 1,
             "cannot": None if value else "its positions end at 1024"}
            for model in MODELS for protocol in ("blocks", "positions") for window in (None, 16)
            for length in (512, 1024, 2048) for value in [None if model == "jrt" and length > 1024 else length / 100]]


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """The figure that a call saves, still open."""
    kept = []
    monkeypatch.setattr(plots, "save", lambda figure, path, **rest: (figure.savefig(path), kept.append(figure)))
    yield kept, tmp_path / "figure.png"
    plt.close("all")


def lines(axis) -> list[list[tuple]]:
    """Points of each model's line, those without a value left out."""
    found = [line.get_xydata() for container in axis.containers for line in [container.lines[0]]]
    return [[tuple(point) for point in line if point[1] == point[1]] for line in found]


def bars(axis) -> list[list[tuple]]:
    """(low, high) of each interval, line by line."""
    return [[(float(s[0][1]), float(s[1][1])) for s in container.lines[2][0].get_segments() if len(s) and s[0][1] == s[0][1]]
            for container in axis.containers]


def test_frequency(drawn):
    figures, path = drawn
    plots.by_frequency(slice_rows(), MODELS, path)
    recall, other = figures[0].axes
    assert [[round(y) for _, y in line] for line in lines(recall)] == [[50, 40, 30], [45, 25]]        # a gap, no point
    assert [[round(y) for _, y in line] for line in lines(other)] == [[50, 40, 30], [45, 35, 25]]
    assert bars(other)[0] == [(48.0, 53.0), (38.0, 43.0), (28.0, 33.0)]
    assert [tick.get_text() for tick in recall.get_xticklabels()] == ["0", "1–9", "≥10"]
    assert "distance >= 8" in recall.get_title() and "distance" not in other.get_title()
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == MODELS and path.is_file()


def test_empty_buckets_are_left_out_at_the_ends_only(drawn):
    figures, path = drawn
    values = {0: None, 1: 5.0, 10: None, 100: 7.0, 1000: None}
    ends = [*list(values)[1:], None]
    plots.by_frequency([{"model": "based", "slice": "frequency", "kind": "other", "from": low, "to": high, "condition": "",
                         "perplexity": value, "low": value, "high": value}
                        for (low, value), high in zip(values.items(), ends)], ["based"], path)
    axis = figures[0].axes[1]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["1–9", "10–99", "100–1k"]
    assert [[round(x) for x, _ in line] for line in lines(axis)] == [[0, 2]]


def test_distance_with_other_tokens_as_levels(drawn):
    figures, path = drawn
    plots.by_distance(slice_rows(), MODELS, path)
    [axis] = figures[0].axes
    assert [[y for _, y in line] for line in lines(axis)] == [[10.0, 17.0], [11.0, 18.0]]
    levels = [line for line in axis.lines if line.get_linestyle() == "--"]
    assert [set(line.get_ydata()) for line in levels] == [{90.0}, {90.0}] and "count < 9" in axis.get_title()


def test_one_sequence_has_no_intervals_to_draw(drawn):
    figures, path = drawn
    plots.by_distance([row | {"low": None, "high": None} for row in slice_rows()], MODELS, path)
    [axis] = figures[0].axes
    assert [[y for _, y in line] for line in lines(axis)] == [[10.0, 17.0], [11.0, 18.0]] and not axis.patches


def test_length_with_windows_and_reasons(drawn):
    figures, path = drawn
    plots.by_length(length_rows(), MODELS, path, trained_at=1024)
    assert len(figures[0].axes) == 2
    for axis in figures[0].axes:
        assert [len(line) for line in lines(axis)] == [3, 3, 2, 2]                       # each model with two windows
        assert [tick.get_text() for tick in axis.get_xticklabels()] == ["512", "1k", "2k"]
    legend = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert legend == [*MODELS, "windows as trained", "window 16", "trained at 1k"]
    [below] = [text.get_text() for text in figures[0].texts if "not from" in text.get_text()]
    assert below.splitlines() == ["jrt: not from 2k on (its positions end at 1024)",
                                  "jrt, window 16: not from 2k on (its positions end at 1024)"]


@pytest.mark.parametrize("low, high", [(120, 128), (110, 260), (90, 430), (40, 900), (5, 5000), (1.1, 1.2)])
def test_an_axis_has_a_few_numbers_whatever_its_range(drawn, low, high):
    figures, path = drawn
    plots.by_length([{"model": "based", "protocol": "blocks", "window": None, "length": length, "perplexity": value,
                      "low": value, "high": value, "cannot": None} for length, value in ((512, low), (1024, high))], ["based"], path)
    axis = figures[0].axes[0]
    bottom, top = axis.get_ylim()
    assert 4 <= sum(bottom <= tick <= top for tick in axis.get_yticks()) <= 12


def test_nothing_to_draw_is_said(drawn):
    figures, path = drawn
    empty = [row | {"perplexity": None, "low": None, "high": None} for row in slice_rows()]
    plots.by_frequency(empty, MODELS, path)
    assert "no targets in this slice" in [text.get_text() for text in figures[0].axes[0].texts]


def test_numbers_of_ticks():
    assert [plots._short(n) for n in (0, 512, 1000, 1024, 10_000, 131_072, 10**6, 1500)] == [
        "0", "512", "1k", "1k", "10k", "128k", "1M", "1500"]
