"""Shards: written in batches, read by map, checked by checksum, and readable by `datasets`."""

import hashlib
import pickle
import time

import numpy as np
import pyarrow as pa
import pytest

from storage.artifacts import Store
from storage.errors import ShardError
from storage.shards import BATCH_ROWS, RowTable, ShardWriter, TokenShards, token_schema

N = 16          # tokens of a row, the extra one included


def tokens_of(rows: int, vocabulary: int = 300, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocabulary, size=(rows, N))


def write_tokens(path, tokens, starts, vocabulary=300) -> dict:
    writer = ShardWriter(path, token_schema(N, vocabulary))
    writer.extend({"tokens": tokens, "starts": starts})
    return writer.close()


@pytest.fixture
def made(tmp_path):
    """A complete shards artifact of two files: (folder of the split, tokens, starts)."""
    tokens = tokens_of(700)
    starts = [np.arange(i % 4, dtype=np.int32) * 3 for i in range(700)]

    def build(folder):
        write_tokens(folder / "train" / "00000.arrow", tokens[:600], starts[:600])
        write_tokens(folder / "train" / "00001.arrow", tokens[600:], starts[600:])
    store = Store(tmp_path / "home")
    return store.path(store.produce("shards", {}, {}, "c", build)) / "train", tokens, starts


# ------------------------------------------------------------------------------------------------------- writing
def test_a_shard_appears_when_it_is_complete_and_reports_its_bytes(tmp_path):
    path = tmp_path / "a" / "00000.arrow"
    writer = ShardWriter(path, token_schema(N, 300))
    writer.extend({"tokens": tokens_of(10), "starts": [[0]] * 10})
    assert not path.exists() and (tmp_path / "a" / "00000.arrow.partial").exists()
    report = writer.close()
    content = path.read_bytes()
    assert report == {"rows": 10, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    assert [entry.name for entry in path.parent.iterdir()] == ["00000.arrow"]


def test_an_exception_leaves_no_shard(tmp_path):
    with pytest.raises(RuntimeError), ShardWriter(tmp_path / "x.arrow", token_schema(N, 300)) as writer:
        writer.append({"tokens": list(range(N)), "starts": [0]})
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_batches_have_256_rows_and_bytes_do_not_depend_on_how_rows_came(tmp_path):
    tokens, starts = tokens_of(600), [[0, i % 7] for i in range(600)]
    whole = write_tokens(tmp_path / "whole.arrow", tokens, starts)
    with ShardWriter(tmp_path / "single.arrow", token_schema(N, 300)) as writer:
        for i in range(600):
            writer.append({"tokens": tokens[i], "starts": starts[i]})
    with ShardWriter(tmp_path / "mixed.arrow", token_schema(N, 300)) as writer:
        writer.append({"tokens": tokens[0].tolist(), "starts": starts[0]})
        writer.extend({"tokens": tokens[1:400], "starts": starts[1:400]})
        for i in range(400, 600):
            writer.append({"tokens": tokens[i].astype(np.uint16), "starts": np.array(starts[i])})
    sizes = [batch.num_rows for batch in pa.ipc.open_stream((tmp_path / "whole.arrow").read_bytes())]
    assert sizes == [256, 256, 88] and BATCH_ROWS == 256
    assert {(tmp_path / name).read_bytes() for name in ("whole.arrow", "single.arrow", "mixed.arrow")} == {
        (tmp_path / "whole.arrow").read_bytes()}
    assert whole["rows"] == 600


def test_ids_that_do_not_fit_are_refused_not_wrapped(tmp_path):
    with ShardWriter(tmp_path / "x.arrow", token_schema(N, 300)) as writer:
        writer.append({"tokens": [0] * N, "starts": [0]})
        with pytest.raises(ShardError, match=r"x.arrow: column tokens: .*70000"):
            writer.extend({"tokens": np.full((1, N), 70000), "starts": [[0]]})
        with pytest.raises(ShardError, match="column tokens"):
            writer.extend({"tokens": tokens_of(N)[:, :-1], "starts": [[0]] * (N - 1)})   # N - 1 rows, by count
        with pytest.raises(ShardError, match="no value for column starts"):
            writer.extend({"tokens": tokens_of(1)})
    assert TokenShards(tmp_path).row(0).tolist() == [0] * N


# ------------------------------------------------------------------------------------------------------- reading
def test_rows_and_starts_come_back_across_files_and_batches(made):
    folder, tokens, starts = made
    shards = TokenShards(folder)
    assert len(shards) == 700 and shards.row_tokens == N
    for i in (0, 1, 255, 256, 511, 512, 599, 600, 601, 699):
        assert shards.row(i).dtype == np.uint16
        np.testing.assert_array_equal(shards.row(i), tokens[i])
        np.testing.assert_array_equal(shards.starts(i), starts[i])
    for i in (-1, 700):
        with pytest.raises(IndexError, match=f"row {i} of 700"):
            shards.row(i)


def test_a_large_vocabulary_takes_32_bits(tmp_path):
    tokens = tokens_of(5, vocabulary=200_000)
    write_tokens(tmp_path / "0.arrow", tokens, [[0]] * 5, vocabulary=200_000)
    shards = TokenShards(tmp_path)
    assert shards.row(0).dtype == np.uint32
    np.testing.assert_array_equal(shards.row(4), tokens[4])
    assert token_schema(N, 65536).field("tokens").type.value_type == pa.uint16()


def test_reading_copies_nothing(made):
    before = pa.total_allocated_bytes()
    shards = TokenShards(made[0])
    row = shards.row(300)
    assert not row.flags.owndata and not row.flags.writeable
    assert pa.total_allocated_bytes() - before < 100_000


def test_random_access_is_quick(made):
    shards = TokenShards(made[0])
    order = np.random.default_rng(1).integers(0, 700, 20_000).tolist()
    rates = []
    for _ in range(3):
        began = time.process_time()
        for i in order:
            shards.row(i)
        rates.append(len(order) / (time.process_time() - began))
    assert max(rates) > 100_000


def test_shards_travel_to_a_worker(made):
    again = pickle.loads(pickle.dumps(TokenShards(made[0])))
    np.testing.assert_array_equal(again.row(650), made[1][650])


def test_datasets_reads_the_same_rows(made):
    datasets = pytest.importorskip("datasets")
    folder, tokens, starts = made
    read = datasets.concatenate_datasets([datasets.Dataset.from_file(str(path)) for path in sorted(folder.glob("*"))])
    assert len(read) == 700 and read[650]["tokens"] == tokens[650].tolist() and read[3]["starts"] == starts[3].tolist()


# -------------------------------------------------------------------------------------------------------- damage
def test_a_flipped_byte_is_found_and_named(made):
    folder, *_ = made
    path = folder / "00001.arrow"
    content = bytearray(path.read_bytes())
    expected = hashlib.sha256(content).hexdigest()
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    found = hashlib.sha256(content).hexdigest()
    with pytest.raises(ShardError, match=f"{path} is damaged: expected sha256 {expected} .*found {found}.*run the stage"):
        TokenShards(folder)
    with pytest.raises(ShardError, match="is damaged"):
        RowTable(path)
    assert len(TokenShards(folder, verify=False)) == 700


def test_a_missing_file_is_named(made):
    (made[0] / "00001.arrow").unlink()
    with pytest.raises(ShardError, match="00001.arrow is missing"):
        TokenShards(made[0])


def test_a_cut_or_foreign_file_is_named(tmp_path):
    with pytest.raises(ShardError, match="no .arrow files in"):
        TokenShards(tmp_path)
    (tmp_path / "0.arrow").write_bytes(b"not arrow at all, but long enough to look at")
    with pytest.raises(ShardError, match="0.arrow is not an Arrow stream"):
        TokenShards(tmp_path)
    with ShardWriter(tmp_path / "0.arrow", pa.schema([("text", pa.string())])) as writer:
        writer.append({"text": "a"})
    with pytest.raises(ShardError, match="0.arrow has no fixed-size `tokens` column"):
        TokenShards(tmp_path)


def test_files_of_different_row_lengths_are_refused(tmp_path):
    write_tokens(tmp_path / "0.arrow", tokens_of(3), [[0]] * 3)
    with ShardWriter(tmp_path / "1.arrow", token_schema(8, 300)) as writer:
        writer.append({"tokens": list(range(8)), "starts": [0]})
    with pytest.raises(ShardError, match="1.arrow has rows of 8 tokens, others here have 16"):
        TokenShards(tmp_path)


# ------------------------------------------------------------------------------------------------ variable lengths
SCHEMA = pa.schema([("ids", pa.list_(pa.uint16())), ("prefix", pa.int32()), ("answers", pa.list_(pa.int32())),
                    ("order", pa.string()), ("swapped", pa.bool_())])


def rows_of(count: int) -> list[dict]:
    return [{"ids": list(range(i % 50)), "prefix": i, "answers": [i, i + 1][: i % 3], "order": f"o{i % 3}",
             "swapped": i % 2 == 0} for i in range(count)]


@pytest.fixture
def table(tmp_path) -> RowTable:
    rows = rows_of(600)
    for name, part in (("00000.arrow", rows[:400]), ("00001.arrow", rows[400:])):
        with ShardWriter(tmp_path / "rows" / name, SCHEMA) as writer:
            for row in part:
                writer.append(row)
    return RowTable(tmp_path / "rows")


def test_columns_of_variable_rows(table):
    rows = rows_of(600)
    assert len(table) == 600 and table.names == SCHEMA.names
    assert table.column("prefix").dtype == np.int32 and table.column("prefix").tolist() == list(range(600))
    assert table.column("swapped").tolist() == [row["swapped"] for row in rows]
    assert table.column("order") == [row["order"] for row in rows]
    values, offsets = table.column("ids")
    assert values.dtype == np.uint16 and len(offsets) == 601
    for i in (0, 49, 255, 256, 399, 400, 599):
        assert values[offsets[i]:offsets[i + 1]].tolist() == rows[i]["ids"]
        found = table.row(i)
        assert {**found, "ids": found["ids"].tolist(), "answers": found["answers"].tolist()} == rows[i]
    with pytest.raises(ShardError, match="no column 'x'; it has ids, prefix"):
        table.column("x")
    with pytest.raises(IndexError):
        table.row(600)


def test_an_empty_table_has_columns(tmp_path):
    with ShardWriter(tmp_path / "0.arrow", SCHEMA):
        pass
    table = RowTable(tmp_path / "0.arrow")
    assert len(table) == 0 and table.column("prefix").tolist() == [] and table.column("order") == []
    assert [part.tolist() for part in table.column("ids")] == [[], [0]]


def test_datasets_reads_variable_rows(table, tmp_path):
    datasets = pytest.importorskip("datasets")
    read = datasets.Dataset.from_file(str(tmp_path / "rows" / "00000.arrow"))
    assert read[49] == rows_of(50)[49]


def test_tables_travel_to_a_worker(table):
    assert pickle.loads(pickle.dumps(table)).row(5)["prefix"] == 5
