"""Reports of many architectures: side by side, with their sweeps, and figures in which every name can be read."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest

from storage.artifacts import Store
from tasks import report
from tasks.reporting import labels, plots, scatter
from tasks.reporting.footprint import footprint
from tasks.specs import StudySpec
from tests.tasks.test_report import scores

TRIALS = [{"value": value, "artifact": "trial-0", "validation_loss": loss, "validation_bits_per_byte": bits,
           "diverged": loss is None} for value, loss, bits in ((0.005, 3.0, 2.5), (0.01, 2.0, 1.5), (0.02, None, None))]
SHARES = {"good": 0.8, "fair": 0.5, "none": 0.05}


def checkpoint(store: Store, name: str, model: str, sweep: dict | None) -> str:
    from models import build, preset, save_model

    def write(folder):
        save_model(build(preset(model)), folder)
        (folder / "summary.json").write_text(json.dumps(
            {"steps": 10, "tokens": 1000, "supervised": 100, "seconds": 1.0, "tokens_per_second": 1234.0,
             "validation_bits_per_byte": 1.25, **({"sweep": sweep} if sweep else {})}))
        (folder / "curve.jsonl").write_text(json.dumps({"step": 1, "tokens": 100, "loss/answer": 5.0, "loss": 5.0}))

    return store.produce("checkpoint", {"name": name, "sweep": sweep}, {}, "code", write)


def sweep(chosen: float, edge: str | None) -> dict:
    return {"field": "optimiser.matrix_learning_rate", "chosen": chosen, "edge": edge, "trials": TRIALS}


def made(names: dict[str, float], swept: bool = True, reference: str | None = None) -> tuple[StudySpec, Store, dict]:
    """A study of these architectures with the share of right answers of each; the first is a Transformer."""
    store = Store()
    study = StudySpec.model_validate({
        "name": "toy", "about": "A toy.", "estimated_minutes": 1, "reference": reference,
        "workloads": {"pydocs": {"architectures": {name: {"model": "jrt-mini"} for name in names},
                                 "rows": {"kind": "recall"}, "evaluations": [{"cloze": {"task": "pydocs"}}]}}})
    checkpoints = {f"{name}/0": checkpoint(
        store, name, "transformer-mini" if number == 0 else "jrt-mini",
        sweep(*((0.01, None), (0.005, "lowest"))[number % 2]) if swept else None) for number, name in enumerate(names)}
    return study, store, {"timings": None, "workloads": {"pydocs": {
        "rows": store.produce("rows", {}, {}, "code", lambda folder: {"by_order": {"default": 10}}), "prompts": {},
        "checkpoints": checkpoints, "sweeps": {"good/0.01": "trial-0"} if swept else {},
        "scores": {f"{name}/0/pydocs": scores(store, f"{name}-{number}", share, 0.04, ("default",))
                   for number, (name, share) in enumerate(names.items())}}}}


def page(names, **options) -> tuple[str, dict[str, list[list[str]]], dict]:
    """The page, its CSV tables as lists of cells, the findings."""
    import csv

    study, store, results = made(names, **options)
    folder = store.path(report.run(study, store, results))
    tables = {path.stem: list(csv.reader(path.open(encoding="utf-8"))) for path in folder.glob("*.csv")}
    return (folder / "report.md").read_text(), tables, json.loads((folder / "findings.json").read_text())


def many(count: int = 12) -> dict[str, float]:
    return {f"kind{number}": 0.05 + 0.07 * number for number in range(count)}


# ------------------------------------------------------------------------------------------------------------- tables
def test_every_architecture_has_one_line_by_ascending_state(home):
    text, tables, found = page(SHARES)
    heads, *rows = tables["architectures-pydocs"]
    assert heads == ["architecture", "parameters", "state at 120", "state at 2,048", "grows", "tokens/s", "rate",
                     "bits/byte", "pydocs / natural", "control of natural", "published"]
    assert [row[0] for row in rows] == ["fair", "none", "good"]        # good is the Transformer: its state is largest
    line = dict(zip(heads, rows[-1]))
    assert (line["grows"], line["tokens/s"], line["rate"], line["bits/byte"]) == ("yes", "1,234", "0.01", "1.250")
    assert dict(zip(heads, rows[0]))["rate"] == "0.005 *" and dict(zip(heads, rows[0]))["grows"] == "no"
    value = next(row["value"] for row in found["recall"] if row["architecture"] == "good" and row["column"] == "natural")
    assert line["pydocs / natural"].startswith(f"{value:.3f} [")
    assert text.index("### Architectures: pydocs") < text.index("### Sweeps") < text.index("### Recall: pydocs")


def test_sweeps_show_every_trial_and_choices_at_an_end(home):
    text, tables, _ = page(SHARES)
    heads, *rows = tables["sweeps"]
    assert heads == ["workload", "architecture", "field", "0.005", "0.01", "0.02", "chosen", "at an end"]
    assert rows[0][1:] == ["good", "optimiser.matrix_learning_rate", "2.500", "1.500", "diverged", "0.01", "no"]
    assert rows[1][-2:] == ["0.005", "lowest"]
    part = text.split("## Choices at an end of what was tried")[1].split("##")[0]
    assert "* pydocs: fair took 0.005, the lowest value of optimiser.matrix_learning_rate." in part and "good" not in part


def test_a_study_without_a_sweep_says_nothing_of_sweeps(home):
    text, tables, _ = page(SHARES, swept=False)
    assert "sweeps" not in tables and "Choices at an end" not in text
    assert "rate" not in tables["architectures-pydocs"][0]


def test_architectures_at_their_controls_are_named(home):
    text, _, _ = page(SHARES)
    part = text.split("## Not above its controls")[1].split("\n##")[0]
    assert "* pydocs, pydocs / natural: none (" in part and "good" not in part and "fair" not in part
    assert "* none\n" in page({"good": 0.8, "fair": 0.6})[0].split("## Not above its controls")[1].split("\n##")[0]


# -------------------------------------------------------------------------------------------------------- comparisons
def test_few_are_compared_all_with_all_many_with_the_reference_alone(home):
    def pairs(found):
        return {(d["first"], d["second"]) for d in found["differences"] if d["about"] == "architecture"}

    assert len(pairs(page(SHARES)[2])) == 3
    assert pairs(page(SHARES, reference="fair")[2]) == {("good", "fair"), ("none", "fair")}
    found = pairs(page(many(), reference="kind3")[2])
    assert len(found) == 11 and {second for _, second in found} == {"kind3"}
    text, _, without = page(many())
    assert pairs(without) == set() and "12 architectures and no `reference`" in text


def test_of_many_the_summary_names_the_best_and_the_last(home):
    line = next(line for line in page(many())[0].splitlines() if line.startswith("* pydocs / natural"))
    assert line.index("kind11") < line.index("kind10") < line.index("kind0 ") and "kind5" not in line


# ------------------------------------------------------------------------------------------------------------ figures
def test_all_figures_of_many_are_drawn(home):
    study, store, results = made(many())
    names = {path.name for path in store.path(report.run(study, store, results)).glob("*.png")}
    assert names == {"recall.png", "loss.png", "recall-against-state.png"}


def points(count: int, seed: int = 0) -> list[dict]:
    """Half of them with one and the same state: the case that hides names."""
    random = np.random.default_rng(seed)
    return [{"panel": "p", "architecture": f"architecture{n}", "grows": n == 0, "value": value, "low": value - 0.05,
             "high": value + 0.05, "state_bytes": 65_000 if n % 2 else int(10 ** random.uniform(4.2, 6))}
            for n, value in enumerate(random.uniform(0.05, 0.95, count))]


def overlap(a, b) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


@pytest.mark.parametrize("seed", range(3))
def test_no_name_hides_another(seed):
    figure, axis = plt.subplots(figsize=(7.4, 5.2))
    own = points(24, seed)
    scatter._frame(axis, own)
    boxes = labels.place(axis, [(p["state_bytes"], p["value"], p["architecture"]) for p in own],
                         [(p["low"], p["high"]) for p in own])
    frame = axis.get_window_extent()
    plt.close(figure)
    assert all(overlap(a, b) == 0 for n, a in enumerate(boxes) for b in boxes[:n])
    assert all(frame.x0 <= x0 and x1 <= frame.x1 and frame.y0 <= y0 and y1 <= frame.y1 for x0, y0, x1, y1 in boxes)


def test_a_name_keeps_off_an_interval_where_there_is_room():
    figure, axis = plt.subplots(figsize=(7.4, 5.2))
    own = [{"state_bytes": 60_000, "value": 0.5}, {"state_bytes": 66_000, "value": 0.8}]
    scatter._frame(axis, [*own, {"state_bytes": 1_000_000}])
    bar = [(0.4, 0.6), (0.2, 0.95)]
    box, _ = labels.place(axis, [(p["state_bytes"], p["value"], "a name") for p in own], bar)
    x = axis.transData.transform((66_000, 0.5))[0]
    plt.close(figure)
    assert not box[0] < x < box[2]


def test_a_name_at_the_edge_stays_inside():
    figure, axis = plt.subplots(figsize=(7.4, 5.2))
    axis.set(xlim=(0, 1), ylim=(0, 1))
    boxes = labels.place(axis, [(0.99, 0.5, "right edge"), (0.01, 0.5, "left edge"), (0.5, 0.995, "top"), (0.5, 0.005, "foot")])
    frame = axis.get_window_extent()
    plt.close(figure)
    assert all(frame.x0 <= x0 and x1 <= frame.x1 and frame.y0 <= y0 and y1 <= frame.y1 for x0, y0, x1, y1 in boxes)


def test_names_stand_where_their_boxes_are_at_any_resolution(tmp_path):
    figure, axis = plt.subplots(figsize=(7.4, 5.2))
    own = points(6)
    scatter._frame(axis, own)
    boxes = labels.place(axis, [(p["state_bytes"], p["value"], p["architecture"]) for p in own])
    figure.set_dpi(figure.dpi * 2)
    figure.canvas.draw()
    for text, box in zip(sorted(axis.texts, key=lambda text: int(text.get_text()[12:])), boxes):
        seen = text.get_window_extent()
        assert (seen.x0 + seen.x1) / 4 == pytest.approx((box[0] + box[2]) / 2, abs=1.0)
        assert (seen.y0 + seen.y1) / 4 == pytest.approx((box[1] + box[3]) / 2, abs=1.0)
    plt.close(figure)


def test_growing_states_are_open_marks(monkeypatch, tmp_path):
    faces = []
    monkeypatch.setattr(plt.Axes, "errorbar", lambda self, *args, **named: faces.append(named["markerfacecolor"]))
    for count in (4, 12):
        faces.clear()
        scatter.recall_against_state(points(count), [f"architecture{n}" for n in range(count)], tmp_path / "x.png")
        assert [face == "white" for face in faces] == [True] + [False] * (count - 1)


def test_no_two_of_32_architectures_look_alike():
    names = [f"n{number}" for number in range(32)]
    found = plots.styles(names)
    assert len({(style.colour, style.line) for style in found.values()}) == 32
    assert len({(style.colour, style.mark) for style in found.values()}) == 32
    assert [found[name].colour for name in names[:8]] == list(plots.PALETTE)
    assert {(found[name].mark, found[name].line) for name in names[:8]} == {("o", "-")}


# ---------------------------------------------------------------------------------------------------------- footprint
def test_footprints_are_those_of_the_models():
    from models import build, preset

    for name, grows in (("transformer-mini", True), ("jrt-mini", False)):
        found, model = footprint(preset(name), 100), build(preset(name))
        assert found.grows is grows
        assert found.parameters == sum(p.numel() for p in model.parameters())
        assert (found.state_bytes, found.state_bytes_long) == (model.cost(100).state_bytes, model.cost(2048).state_bytes)
        assert (found.state_bytes_long > found.state_bytes) == grows
