"""Rows: what is asked can be read in the row, draws have the promised shares, batches are batches."""

from collections import Counter
from functools import partial

import numpy as np
import pytest

from storage.artifacts import Store
from storage.errors import CorpusError, SpecError
from storage.shards import RowTable, ShardWriter
from tasks import corpus as corpora
from tasks import disjoint_rows, recall_rows, rows
from tasks.prompts import compose, question_for
from tasks.specs import DisjointRowsSpec, RecallRowsSpec
from tasks.tokenizers import load_tokenizer, train_bpe

WORDS = ("array like float tuple optional none callable string matrix index default shape axis number sequence list "
         "graph node edge weight naïve 東京").split()


def _text(draw, lines):
    """A numpydoc-like document with `lines` attributes."""
    names = draw.choice([f"{word}_{k}" for word in WORDS[:12] for k in range(6)], size=lines, replace=False)
    body = [f"{name} : {' '.join(draw.choice(WORDS, size=draw.integers(1, 6)))}.." for name in names]
    return "\n".join(["Compute " + " ".join(draw.choice(WORDS, size=8)) + ".", "", *body, "", "Notes of no use"])


def _corpus(folder, documents=160):
    draw = np.random.default_rng(0)
    with ShardWriter(folder / corpora.FILE, corpora.SCHEMA) as writer:
        for k in range(documents):
            split = ("train", "train", "train", "validation", "test")[k % 5]
            writer.append({"id": f"{k:04d}", "split": split, "source": "x", "text": _text(draw, 1 + k % 7)})
    return RowTable(folder / corpora.FILE)


def spec(**changes):
    return RecallRowsSpec(**{"tokens": 250_000, "validation_tokens": 5000, "maximum_document_tokens": 90} | changes)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    table = _corpus(tmp_path_factory.mktemp("corpus"))
    return train_bpe(table.column("text"), 350)


@pytest.fixture(scope="module")
def made(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("rows")
    documents = _corpus(folder)
    counts = rows.build_recall(spec(), documents, tokenizer, folder)
    return documents, counts, RowTable(folder / "train.arrow"), RowTable(folder / "validation.arrow")


def _parts(row, tokenizer):
    """(text before the blank line, lines after it) of a row."""
    text = tokenizer.decode(row["ids"])
    head, _, tail = text.rpartition("\n\n")
    return head, tail.split("\n")[:-1]


def test_prefix_ends_with_the_blank_line_and_answers_are_value_and_newline(made, tokenizer):
    for i in range(0, len(made[2]), 7):
        row = made[2].row(i)
        head, lines = _parts(row, tokenizer)
        assert row["ids"][0] == tokenizer.end_of_text
        assert tokenizer.decode(row["ids"][: row["prefix"]]) == head + "\n\n"
        answered = tokenizer.decode(row["ids"][row["answers"] + 1])
        assert answered == "".join(f" {line.split(' : ', 1)[1]}\n" for line in lines)
        assert row["answers"].min() >= row["prefix"]


def test_every_answer_can_be_read_in_the_row(made, tokenizer):
    for i in range(0, len(made[2]), 7):
        head, lines = _parts(made[2].row(i), tokenizer)
        assert 1 <= len(lines) <= 6 and len({line.split(" : ")[0] for line in lines}) == len(lines)
        assert all(line in head.split("\n") for line in lines)


def test_a_row_begins_as_the_evaluation_prompt_is_tokenised(made, tokenizer):
    """tokens(prompt) is a prefix of tokens(prompt + answer), for every question of a row."""
    for i in range(0, len(made[2]), 31):
        row = made[2].row(i)
        head, lines = _parts(row, tokenizer)
        name = lines[0].split(" : ")[0]
        prompt = [tokenizer.end_of_text, *tokenizer.encode(head + "\n\n" + question_for(name))]
        assert row["ids"][: len(prompt)].tolist() == prompt and row["answers"][0] == len(prompt) - 1


def test_orders_are_composed_as_prompts(made, tokenizer):
    seen = Counter()
    for i in range(0, len(made[2]), 5):
        row = made[2].row(i)
        head, lines = _parts(row, tokenizer)
        question = question_for(lines[0].split(" : ")[0])
        if row["order"] == "question_first":
            document = head.removeprefix(question + "\n")
        elif row["order"] == "twice":
            document = head.removeprefix(question + "\n")[: (len(head) - len(question) - 2) // 2]
        else:
            document = head
        assert compose(row["order"], document, question, "").text == head + "\n\n"
        seen[row["order"]] += 1
    assert len(seen) == 3


def test_shares_are_those_asked_for_within_sampling_error(made):
    _, counts, table, _ = made
    n, asked = counts["rows"], spec()
    for order, share in asked.order_shares.items():
        assert abs(counts["by_order"][order] - share * n) < 4 * np.sqrt(share * (1 - share) * n)
    expected = 0.6 * n
    assert abs(counts["by_form"]["list"] - expected) < 4 * np.sqrt(0.24 * n) + 0.02 * n
    rest = n - counts["by_form"]["list"] + counts["left_out"].get("swap: nothing left to ask", 0)
    assert abs(counts["by_form"]["document"] - rest / 2) < 4 * np.sqrt(rest / 4)
    assert Counter(table.column("form")) == counts["by_form"] and Counter(table.column("order")) == counts["by_order"]


def test_lists_go_from_all_rows_to_a_fifth(made):
    form = np.array(made[2].column("form")) == "list"
    eighth = len(form) // 8
    means = [form[k * eighth : (k + 1) * eighth].mean() for k in range(8)]
    assert np.allclose(means, 0.95 - 0.1 * np.arange(8), atol=0.12)
    shares = recall_rows.list_shares(np.array([0, 50, 100, 200]), 101, spec())
    assert np.allclose(shares, [1.0, 0.6, 0.2, 0.2])


def test_swapped_rows_are_documents_with_other_values(made, tokenizer):
    documents, _, table, _ = made
    texts = dict(zip(documents.column("id"), documents.column("text")))
    changed = 0
    for i in range(0, len(table), 5):
        row = table.row(i)
        if row["form"] in ("swap", "document"):
            lines = _parts(row, tokenizer)[1]
            in_text = [line in texts[row["document"]].split("\n") for line in lines]
            names = {line.split(" : ")[0] for line in texts[row["document"]].split("\n") if " : " in line}
            assert {line.split(" : ")[0] for line in lines} <= names
            assert all(in_text) or row["form"] == "swap"
            changed += row["form"] == "swap" and not all(in_text)
    assert changed > 10


def test_documents_come_from_their_own_split(made):
    documents, counts, train, validation = made
    split = dict(zip(documents.column("id"), documents.column("split")))
    assert {split[name] for name in train.column("document") if name} == {"train"}
    assert {split[name] for name in validation.column("document") if name} == {"validation"}
    assert counts["documents"]["train"] > 60 and counts["validation"]["rows"] == len(validation)


def test_accounts_and_batches(made):
    _, counts, table, _ = made
    ids, offsets = table.column("ids")
    lengths, batch = np.diff(offsets), table.column("batch")
    assert counts["tokens"] == len(ids) and 0 <= len(ids) - 250_000 < 512
    assert counts["rows"] == len(table) and counts["batches"] == batch[-1] + 1
    assert counts["answer_tokens"] == len(table.column("answers")[0])
    assert np.array_equal(np.unique(batch), np.arange(counts["batches"])) and (np.diff(batch) >= 0).all()
    padded = [len(found) * found.max() for found in np.split(lengths, np.flatnonzero(np.diff(batch)) + 1)]
    assert max(padded) <= 1024 and sum(padded) == counts["padded_tokens"] < 1.05 * len(ids)
    assert np.median(padded) > 850
    firsts = lengths[np.flatnonzero(np.diff(batch)) + 1]
    assert (np.diff(firsts) < 0).mean() > 0.3, "batches within a window are not shuffled"


def test_the_same_spec_gives_the_same_bytes_and_another_seed_other_rows(made, tokenizer, tmp_path):
    documents, _, table, _ = made
    rows.build_recall(spec(), documents, tokenizer, tmp_path / "a")
    assert (tmp_path / "a/train.arrow").read_bytes() == table.path.read_bytes()
    rows.build_recall(spec(seed=1), documents, tokenizer, tmp_path / "b")
    other = RowTable(tmp_path / "b/train.arrow")
    texts, others = ({found.row(i)["ids"].tobytes() for i in range(len(found))} for found in (table, other))
    assert len(texts & others) < 0.2 * len(others)


def test_a_row_does_not_depend_on_its_neighbours(made, tokenizer):
    documents = made[0]
    pool = recall_rows.pools(documents.column("id"), documents.column("split"), documents.column("text"), tokenizer,
                             spec())["train"]
    shares = np.full(40, 0.3)
    together, _ = recall_rows.window(range(100, 140), shares, pool, tokenizer, spec())
    apart = [row for k in range(100, 140) for row in recall_rows.window([k], shares[:1], pool, tokenizer, spec())[0]]
    assert [row.ids.tolist() for row in together] == [row.ids.tolist() for row in apart]


def test_long_rows_are_left_out_and_counted(made, tokenizer, tmp_path):
    counts = rows.build_recall(spec(tokens=20_000, validation_tokens=0, maximum_row_tokens=150), made[0], tokenizer,
                               tmp_path)
    lengths = np.diff(RowTable(tmp_path / "train.arrow").column("ids")[1])
    assert lengths.max() <= 150 and counts["left_out"]["longer than maximum_row_tokens"] > 0
    assert not (tmp_path / "validation.arrow").exists()


def test_rows_that_can_never_fit_stop_the_stage(made, tokenizer, tmp_path):
    never = spec(maximum_row_tokens=32, maximum_questions=20, list_lines=(12, 12), list_share_first=1, list_share_last=0,
                 order_shares={"twice": 1}, validation_tokens=0)
    with pytest.raises(CorpusError, match="allow longer rows"):
        rows.build_recall(never, made[0], tokenizer, tmp_path)
    with pytest.raises(CorpusError, match="no row of a whole window can be used"):
        pool = recall_rows.pools(*map(made[0].column, ("id", "split", "text")), tokenizer, never)["train"]
        work = partial(rows._window, window=recall_rows.window, size=8, total=8, pool=pool, tokenizer=tokenizer, spec=never, purpose="row")
        rows._write(tmp_path / "x.arrow", work, 5000, tokenizer, never)


@pytest.mark.parametrize("name", ["gpt2", "bytes"])
def test_other_tokenizers_have_the_same_laws(made, tmp_path, name):
    tokenizer = load_tokenizer(name)
    counts = rows.build_recall(spec(tokens=20_000, validation_tokens=0, maximum_document_tokens=300,
                                    maximum_row_tokens=2000, list_share_first=0.3,
                                    order_shares={"filler": 1, "repeat": 1, "alternate": 1}),
                               made[0], tokenizer, tmp_path)
    table = RowTable(tmp_path / "train.arrow")
    for i in range(len(table)):
        row = table.row(i)
        lines = _parts(row, tokenizer)[1]
        assert tokenizer.decode(row["ids"][row["answers"] + 1]) == "".join(
            f" {line.split(' : ', 1)[1]}\n" for line in lines)
    assert "a token crosses the edge of a value" not in counts["left_out"] and len(counts["by_order"]) == 3


def test_a_corpus_without_attributes_says_what_is_missing(tokenizer, tmp_path):
    with ShardWriter(tmp_path / corpora.FILE, corpora.SCHEMA) as writer:
        writer.append({"id": "0", "split": "train", "source": "x", "text": "no such line here"})
    with pytest.raises(CorpusError, match="no document of the train split has a line `name : value`"):
        rows.build_recall(spec(), RowTable(tmp_path / corpora.FILE), tokenizer, tmp_path)


def test_run_makes_an_artifact_with_its_tokenizer(tmp_path, tokenizer):
    store = Store(tmp_path / "home")
    corpus = store.produce("corpus", {}, {}, "c", lambda folder: {"documents": len(_corpus(folder))})
    shards = store.produce("shards", {}, {}, "c", lambda folder: tokenizer.save(folder / "tokenizer"))
    small = spec(tokens=5000)
    planned = rows.plan(small, store, corpus, shards)
    assert not store.exists(planned) and rows.run(small, store, corpus, shards) == planned
    assert load_tokenizer(store.path(planned) / "tokenizer").name == "bpe:350"
    assert store.manifest(planned).inputs == {"corpus": corpus, "shards": shards}
    with pytest.raises(SpecError, match="give both ids"):
        rows.plan(small, store)
    with pytest.raises(SpecError, match="shares are not negative"):
        rows.plan(spec(order_shares={"default": -1.0}), store, corpus, shards)


# --------------------------------------------------------------------------------------------------------- disjoint
def _brute_answer(ids):
    """The one element that both sets have."""
    ids = list(ids)
    second, end = ids.index(2), len(ids) - 2
    common = set(ids[1:second]) & set(ids[second + 1 : end])
    assert len(common) == 1 and len(set(ids[1:second])) == second - 1
    return common.pop()


@pytest.mark.parametrize("first, second", [(4, 64), (64, 4), (1, 1), (124, 124)])
def test_brute_force_finds_exactly_the_answer(first, second):
    ids_BN = disjoint_rows.disjoint(np.random.default_rng(0), 2500, first, second, 256)
    assert ids_BN.shape == (2500, first + second + 4)
    assert all(_brute_answer(ids) == ids[-1] for ids in ids_BN)
    assert (ids_BN[:, [0, first + 1, -2]] == [1, 2, 3]).all() and ids_BN[:, -1].min() >= 4


def test_answers_lie_anywhere_in_both_sets():
    ids_BN = disjoint_rows.disjoint(np.random.default_rng(1), 4000, 4, 16, 64)
    in_first = (ids_BN[:, 1:5] == ids_BN[:, -1:]).argmax(1)
    in_second = (ids_BN[:, 6:22] == ids_BN[:, -1:]).argmax(1)
    assert np.bincount(in_first, minlength=4).min() > 850 and np.bincount(in_second, minlength=16).min() > 180


def test_released_order_of_draws_is_reproduced_bit_for_bit(shared):
    golden = np.load(shared / "golden/jrt/synthetic_data.npz")
    for name, first, second, vocabulary, count, seed in [
            ("sd_v64_n6_A4_B8_seed0", 4, 8, 64, 6, 0), ("sd_v64_n6_A8_B4_seed0", 8, 4, 64, 6, 0),
            ("sd_v2048_n4_A16_B64_seed123", 16, 64, 2048, 4, 123)]:
        ids_BN = disjoint_rows.disjoint_released(seed, count, first, second, vocabulary)
        assert np.array_equal(ids_BN[:, :-1], golden[f"{name}__inputs"])
        assert np.array_equal(ids_BN[:, -1], golden[f"{name}__labels"][:, -1])
        assert all(_brute_answer(ids) == ids[-1] for ids in ids_BN)


def test_disjoint_rows_file(tmp_path):
    small = DisjointRowsSpec(batches=300, batch_tokens=200)
    counts = rows.build_disjoint(small, tmp_path)
    table = RowTable(tmp_path / "train.arrow")
    batch = table.column("batch")
    sizes = [set() for _ in range(300)]
    for i in range(len(table)):
        row = table.row(i)
        slot = row["prefix"] - 1
        assert row["answers"].tolist() == [slot] and row["ids"][slot] == 3 and slot + 2 == len(row["ids"])
        assert row["ids"][slot + 1] == _brute_answer(row["ids"])
        first, second = map(int, row["document"].split("|"))
        assert (row["order"] == "small_first") == (first < second) and len(row["ids"]) == first + second + 4
        sizes[row["batch"]].add(row["document"])
    assert counts["rows"] == len(table) and counts["batches"] == 300 == batch[-1] + 1
    assert all(len(found) == 1 for found in sizes)
    firsts = [found.pop() for found in sizes]
    assert set(firsts[:60]) == {"4|16", "16|4"} and "64|4" not in firsts[:133]
    assert set(firsts[200:]) == {"4|16", "16|4", "4|32", "32|4", "4|64", "64|4"}
    assert counts["validation"]["batches"] == 6 and set(counts["validation"]["by_sizes"]) == set(firsts)


def test_a_batch_is_a_function_of_seed_and_number():
    long, short = (list(disjoint_rows.batches(DisjointRowsSpec(batches=n, curriculum=0))) for n in (40, 20))
    assert all(np.array_equal(a.ids_BN, b.ids_BN) for a, b in zip(short, long))
    other = next(disjoint_rows.batches(DisjointRowsSpec(batches=20, seed=1)))
    assert not np.array_equal(other.ids_BN[:, 1:5], short[0].ids_BN[:len(other.ids_BN), 1:5])


def test_sets_that_do_not_fit_are_refused():
    with pytest.raises(SpecError, match="use a vocabulary of at least 136"):
        rows.build_disjoint(DisjointRowsSpec(vocabulary=128), None)
    with pytest.raises(SpecError, match="1 <= small <= large"):
        rows.build_disjoint(DisjointRowsSpec(sizes=((16, 4),)), None)
    with pytest.raises(SpecError, match="1 <= small <= large"):
        rows.plan(DisjointRowsSpec(sizes=((16, 4),)), None)
    disjoint_rows.check(DisjointRowsSpec(vocabulary=136))
