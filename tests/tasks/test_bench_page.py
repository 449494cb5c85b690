"""What a person sees of a benchmark: tables, plots, published figures with what differs; and what MLflow gets."""

import json

import pytest

from flows.commands import bench as command
from flows.recording.recorded import timing_metrics
from tasks.benchmarks import drawing, figures, notes, page, published, sweep
from tasks.benchmarks.conditions import Conditions
from tasks.benchmarks.rows import row
from tasks.benchmarks.sections import DECODE, INCREMENTAL, MODEL_FORWARD, PREFIXES, STEP, Decode, Sweep
from tasks.specs import BenchSpec

SHARED = {"dtype": "float32", "threads": 1, "device": "AMD EPYC", "heads": 8, "batch": 1}


def timed(op, backend, n, ms, **more):
    known = {**SHARED, "ms": ms, "ms_median": ms * 1.1, "p20": ms, "p80": ms * 1.2, "repetitions": 3, "error": 1e-7,
             "tolerance": 2e-5, "contended": False, "truth": "formula", "peak_bytes": 1000}
    return row(op=op, backend=backend, n=n, **{**known, **more})


@pytest.fixture
def rows():
    found = []
    for n, factor in ((512, 1), (2048, 4), (8192, 16)):
        found += sweep.compare([
            timed("sdpa", "torch", n, 8.0 * factor**2), timed("taylor", "chunked", n, 5.0 * factor, contended=n == 2048),
            timed("taylor", "fla.naive_chunk_based", n, 20.0 * factor), timed("prefix", "chunked", n, 6.0 * factor)])
    found.append(row(op="lavo", backend="chunked", n=512, **SHARED, error=0.25, tolerance=2e-5, truth="formula"))
    for n in (512, 8192):
        found += [timed("sdpa", "torch", n, n / 1000, measure=DECODE, state_bytes=n * 4096),
                  timed("taylor", "step", n, 0.1, measure=DECODE, state_bytes=318_000)]
    for n in (64, 512):
        found += [timed("attention", "auto", n, 1.0, measure=STEP, state_bytes=n * 2048, state_bytes_measured=n * 2048, flops=n)]
    published.link(found)
    return found


# ------------------------------------------------------------------------------------------------------------- published
def test_a_row_finds_its_claim(rows):
    def claim(op, backend, n):
        found = next(one for one in rows if (one["op"], one["backend"], one["n"], one["measure"]) == (op, backend, n, "forward"))
        return found["published"]

    assert claim("sdpa", "torch", 8192) | {"differs": ""} == {
        "claim_id": "jrt_t5_fa2_n8192_b16", "value": 6.8, "unit": "ms", "differs": ""}
    assert claim("taylor", "chunked", 8192)["claim_id"] == "jrt_t5_based_cuda_n8192_b16"
    assert claim("prefix", "chunked", 2048)["claim_id"] == "jrt_t5_jrt_rnn_n2048_b16"
    assert claim("taylor", "chunked", 512) is None and claim("taylor", "fla.naive_chunk_based", 8192) is None
    differs = claim("taylor", "chunked", 8192)["differs"]
    for part in ("NVIDIA H100, here AMD EPYC with 1 thread", "batch 16, here 1", "heads 16, here 8",
                 "dtype bfloat16, here float32", "no normaliser"):
        assert part in differs


def test_what_agrees_is_not_named_as_different():
    gpu = timed("prefix", "triton", 32_768, 2.0, device="NVIDIA H100 80GB HBM3", batch=16, heads=16, dtype="bfloat16", threads=None)
    published.link([gpu])
    assert gpu["published"] == {"claim_id": "jrt_t5_jrt_rnn_n32768_b16", "value": 5.6, "unit": "ms",
                                "differs": "no normaliser; prefix n/2; mean of 20 runs"}
    gpu["ratio_to_sdpa"] = 50.0
    assert published.ratio(gpu) == pytest.approx(107.8 / 5.6)


def test_the_nearest_batch_is_taken():
    wide = timed("prefix", "triton", 16_384, 2.0, batch=64)
    narrow = timed("prefix", "triton", 16_384, 2.0, batch=8)
    assert [published.about(one)["batch"] for one in (wide, narrow)] == [64, 16]


def test_the_quadratic_peer_is_compared_with_plain_torch_and_naive_with_nothing():
    peer, naive = timed("prefix", "released quadratic", 2048, 700.0), timed("prefix", "naive", 2048, 700.0)
    published.link([peer, naive])
    assert peer["published"]["claim_id"] == "jrt_t5_jrt_rnn_pytorch_n2048_b16" and naive["published"] is None


def test_lavos_speeds_are_ratios():
    one = timed("LAVO", "lavo", 16_384, 100.0, measure=MODEL_FORWARD, ratio_to_vanilla=18.0)
    published.link([one])
    assert (one["published"]["value"], one["published"]["unit"]) == (22.0, "x vanilla")
    one["peak_bytes"] = None
    assert [line[3:6] for line in page.compared([one]).rows] == [["18.0 x vanilla", "22 x vanilla", "LAVO"]]


def test_memory_is_compared_where_it_was_measured():
    one, other = (timed(system, "lavo", 16_384, 100.0, measure=MODEL_FORWARD, ratio_to_vanilla=18.0, peak_bytes=peak)
                  for system, peak in (("LAVO", 2_500_000_000), ("ABC", None)))
    published.link([one, other])
    lines = {line[8]: line for line in page.compared([one, other]).rows}
    assert lines["lavo_t2_lavo_mem16384"][3:6] == ["peak 2.5 GB", "9,337 MB", "LAVO"]
    assert "NVIDIA A100 80GB, here AMD EPYC" in lines["lavo_t2_lavo_mem16384"][9]
    assert "lavo_t2_abc_mem16384" not in lines
    listed = {claim["claim_id"] for claim in published.elsewhere([one, other])}
    assert "lavo_t2_abc_mem16384" in listed and "lavo_t2_lavo_mem16384" not in listed


def test_published_systems_are_told_apart():
    rows = [timed("prefix", backend, 2048, 3.0, device="NVIDIA H100 80GB HBM3", batch=16, heads=16, dtype="bfloat16", threads=None)
            for backend in ("triton", "released quadratic")]
    published.link(rows)
    assert [line[5] for line in page.compared(rows).rows] == ["JRT-RNN, custom CUDA", "JRT-RNN, plain PyTorch"]
    axis = drawing.plt.figure().add_subplot()
    drawing.published_marks(axis, rows)
    assert len({line.get_marker() for line in axis.lines}) == 2
    assert [line.get_label() for line in axis.lines] == [
        f"published: JRT-RNN, {how}\nNVIDIA H100, batch 16, bfloat16" for how in ("custom CUDA", "plain PyTorch")]
    drawing.plt.close("all")


def test_what_a_simulation_was_is_said_beside_the_published_figure():
    one = timed("LAVO", "lavo", 16_384, 100.0, measure=PREFIXES, ratio_to_vanilla=18.0, note="2 layers, width 256; stride 128")
    published.link([one])
    assert one["published"]["differs"].endswith("every prefix length from 1; dummy sequence; here 2 layers, width 256; stride 128")


def test_claims_are_those_of_the_papers():
    claims = published.claims()
    assert len({claim["claim_id"] for claim in claims}) == len(claims) > 60
    values = {claim["claim_id"]: claim["value"] for claim in claims}
    assert (values["jrt_t5_fa2_n32768_b16"], values["jrt_t5_based_cuda_n32768_b16"]) == (107.8, 4.5)
    assert (values["lavo_t2_lavo_speed16384"], values["lavo_t10_lavo_speed16384"]) == (22.0, 20.81)


# ---------------------------------------------------------------------------------------------------------------- tables
def test_one_table_a_measure(rows):
    forward, decode, growth = page.tables(rows)
    assert forward.title == "Forward: AMD EPYC, float32, 1 thread, batch 1, 8 heads"
    assert {"x SDPA", "x peer", "peak", "contended"} <= set(forward.columns) and "state" not in forward.columns
    assert {"tokens/s", "FLOPs"}.isdisjoint(decode.columns) and "state" in decode.columns and "FLOPs" not in forward.columns
    assert {"FLOPs", "state counted", "state measured"} <= set(growth.columns)
    assert all(table.note for table in (forward, decode, growth))
    cells = {(line[0], line[1], line[2]): dict(zip(forward.columns, line)) for line in forward.rows}
    taylor = cells["taylor", "chunked", "2,048"]
    assert taylor["ms"] == "20" and taylor["contended"] == "yes" and taylor["x peer"] == "4.00"
    assert taylor["x SDPA"] == "6.40"
    assert cells["lavo", "chunked", "512"]["ms"] == "–" and cells["lavo", "chunked", "512"]["error"] == "2.5e-01"
    lengths = [line[2] for line in forward.rows]
    assert lengths == sorted(lengths, key=lambda text: int(text.replace(",", "")))


def test_the_page_says_what_was_refused_and_what_is_missing(rows):
    facts = {"preset": "gate", "machine": "AMD EPYC", "versions": {"torch": "2.13.0"}, "absent": ["eva: not in this build"]}
    text = page.markdown(rows, facts, ["time.png"])
    for part in ("# Benchmark `gate`", "torch 2.13.0", "refused: lavo (chunked), forward, n 512: error 2.5e-01 above 2e-05",
                 "1 of 19 rows are contended", "![time](time.png)", "jrt_t5_based_cuda_n8192_b16", "Published, not measured here",
                 "jrt_t5_fa2_n32768_b16", "* eva: not in this build", "taylor, forward: formula"):
        assert part in text, part


def simulation(system, measure, n, own, **more):
    return timed(system, system, n, 100.0, measure=measure, ratio_to_vanilla=2.0, ratio_to_sdpa=1.5, tokens_per_second=40.0,
                 note=f"2 layers, width 256; {own}{9 if n == 1024 else 17} of {n:,} lengths run (stride 128)", **more)


def test_a_simulation_says_what_was_run():
    rows = [simulation(system, measure, n, "window 64; " if system == "LAVO" else "")
            for measure in (PREFIXES, INCREMENTAL) for system in ("Vanilla", "LAVO") for n in (1024, 2048)]
    for table in page.tables(rows):
        for part in ("trapezoid rule", "Measured: 2 layers, width 256.", "n 1,024: 9 of 1,024 lengths run (stride 128).",
                     "n 2,048: 17 of 2,048 lengths run (stride 128).", "LAVO: window 64.", "one after another"):
            assert part in table.note, part
        assert "x attention model" in table.columns and "x SDPA" not in table.columns


def test_windows_and_slots_of_the_systems_are_named():
    rows = [simulation(system, PREFIXES, 1024, "") for system in ("Vanilla", "LAVO", "LongShort", "Local", "unknown")]
    text = page.tables(rows)[0].note
    assert "LAVO: window 64, slots 64." in text and "Local: window 64." in text and "LongShort: window " in text
    assert "Vanilla:" not in text and "unknown:" not in text


def test_ratios_of_a_disturbed_run_compare_where_turns_were_taken(rows):
    assert notes.contention([one for one in rows if not one["contended"]]) == ""
    forward = notes.contention(rows)
    assert "timed in turns" in forward and "one after another" not in forward
    step = timed("taylor", "step", 512, 0.1, measure=DECODE, contended=True)
    assert "one after another (decode step) compare by neither" in notes.contention([*rows, step])
    assert "in turns" not in notes.contention([step])


def test_the_floor_is_named():
    one = timed("taylor", "triton", 512, 0.1, floor_fraction=0.4, threads=None)
    assert "bandwidth stated for the memory" in page.tables([one])[0].note
    assert "bandwidth stated" not in page.tables([timed("taylor", "chunked", 512, 0.1)])[0].note


def test_names_at_the_ends_of_lines_do_not_meet():
    heights = drawing.apart([0.1, 0.1, 0.5, 0.98, 0.99], 0.05)
    assert heights == pytest.approx([0.075, 0.125, 0.5, 0.96, 1.01])
    assert drawing.apart([], 0.1) == []


def test_every_plot_is_drawn(rows, tmp_path):
    assert figures.draw(rows, tmp_path) == ["time.png", "ratios.png", "decode.png", "growth.png"]
    assert all((tmp_path / name).stat().st_size > 5000 for name in ("time.png", "ratios.png", "decode.png", "growth.png"))
    assert figures.draw([one for one in rows if one["ms"] is None], tmp_path) == []


def test_labels_name_the_conditions_and_the_crosses(rows):
    import matplotlib.pyplot as plt

    figure = figures.time_against_length([one for one in rows if one["ms"] is not None])
    assert "crosses: contended\nAMD EPYC, float32, 1 thread, batch 1, 8 heads" in figure._suptitle.get_text()
    labels = {text.get_text() for axis in figure.axes if axis.get_legend() for text in axis.get_legend().get_texts()}
    assert {"attention (torch)", "chunked", "fla.naive_chunk_based", "published: Based, custom CUDA\nNVIDIA H100, batch 16, bfloat16"} <= labels
    bars = figures.ratios([one for one in rows if one["ms"] is not None])
    assert any("published: Based, custom CUDA,\nover FlashAttention-2, NVIDIA H100" in text.get_text() for text in bars.axes[0].get_legend().get_texts())
    plt.close("all")


def test_batches_have_a_plot_of_their_own(tmp_path):
    rows = [timed(op, "torch" if op == "sdpa" else "triton", 16_384, ms * batch, batch=batch)
            for batch in (1, 4, 16) for op, ms in (("sdpa", 2.0), ("taylor", 0.2))]
    assert "batch.png" in figures.draw(rows, tmp_path)


# ------------------------------------------------------------------------------------------------------ command, tracking
def test_the_table_on_a_terminal(rows, tmp_path, capsys):
    (tmp_path / "notes.json").write_text(json.dumps({"absent": ["eva: not in this build"]}))
    command.show_timings(rows, tmp_path)
    shown = capsys.readouterr().out
    for part in ("x SDPA", "taylor", "fla.naive_chunk_based", "not here: eva",
                 "refused: lavo (chunked), forward, n 512: error 2.5e-01 above 2e-05", "are contended", "Decode step"):
        assert part in shown, part


def test_the_list_names_presets_and_operations(capsys):
    command.list_bench(json=True)
    listed = json.loads(capsys.readouterr().out)
    assert list(listed["presets"]) == list(BenchSpec.model_fields["preset"].annotation.__args__)
    assert listed["presets"]["table5"]["needs"] == "a CUDA GPU" and listed["presets"]["gate"]["needs"] is None
    assert {"chunked"} <= set(listed["operations"]["taylor"]["here"]) and listed["operations"]["taylor"]["decode"]
    command.list_bench(json=False)
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("quick", "gate", "long", "table5", "prefix", "sdpa"))


def test_every_row_with_a_time_is_a_metric(rows):
    metrics = timing_metrics(rows)
    assert sorted(metrics) == [64, 512, 2048, 8192]         # the length is the step: a curve an operation
    assert metrics[2048]["ms/forward/taylor chunked"] == 20 and metrics[2048]["ratio_to_sdpa/forward/taylor chunked"] == 6.4
    assert "ms/forward/lavo chunked" not in metrics[512]
    assert all(isinstance(value, (int, float)) for values in metrics.values() for value in values.values())
    assert timing_metrics([timed("taylor", "triton", 64, 1.0, batch=16)])[64]["ms/forward/taylor triton batch 16"] == 1


@pytest.mark.parametrize("section", [Sweep(("sdpa", "taylor"), (64,), seconds=0, fewest=1), Decode(("taylor",), (64,), seconds=0)])
def test_measured_rows_can_be_shown(section, tmp_path):
    module = __import__(section.module, fromlist=["measure"])
    rows = [one for point in module.points(section, Conditions()) for one in module.measure(section, point, Conditions())]
    assert page.tables(rows) and rows


def test_the_command_offers_every_preset():
    import typing

    from flows.cli import stages

    offered = typing.get_args(typing.get_args(typing.get_type_hints(stages.bench, include_extras=True)["preset"])[0])
    assert offered == typing.get_args(BenchSpec.model_fields["preset"].annotation)
