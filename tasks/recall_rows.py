"""Recall rows: a document, then lines `name : value` that only a reader of the document can complete.

    <eot> [question "\\n"] document ["\\n" document] "\\n\\n" then up to six lines "name : value\\n"

Three forms: `document` shows a real document; `swap` the same with its values replaced by others of the corpus, so
that nothing but reading helps; `list` a few synthetic lines, the easiest look-up there is, most of the rows at the
beginning and few at the end. (Settings and what each of them buys were measured for models of 0.4 M parameters.)

A row's text is built whole and tokenised whole, as a prompt is, and the targets are found by byte offsets.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storage.errors import CorpusError
from tasks.draws import generator
from tasks.prompts import ATTRIBUTE_LINE, Prompt, askable, attributes, compose, cut_all, question_for, with_values
from tasks.specs import QuestionRowsSpec, RecallRowsSpec
from tasks.tokenizers import Tokenizer

Window = Callable[..., tuple[list["Row"], Counter]]      # `window` of this module or of tasks.question_rows
LIST_VALUE_TOKENS = 10        # longer values do not get into lists
SAMPLE = 256                  # rows from which the mean length of each form is estimated


@dataclass(frozen=True)
class Pool:
    """Documents of one split, cut, each with something to ask; names and values of the train split."""

    ids: list[str]
    documents: list[str]
    names: list[str]              # of list lines, as frequent as in the documents
    list_values: list[str]        # likewise
    swap_values: list[str]        # distinct

    def __len__(self) -> int:
        return len(self.documents)


@dataclass
class Draft:
    """One row before it is tokenised."""

    form: str
    order: str
    document_id: str
    prompt: Prompt
    lines: list[tuple[str, str]]      # (cue, value): what stands before the value, and the value


@dataclass(frozen=True)
class Row:
    """One row. `prefix` counts tokens up to and including the blank line; slot i of `answers` predicts ids[i+1]."""

    ids: np.ndarray
    prefix: int
    answers: np.ndarray
    order: str
    form: str
    document: str


def pools(ids: Sequence[str], splits: Sequence[str], texts: Sequence[str], tokenizer: Tokenizer,
          spec: RecallRowsSpec) -> dict[str, Pool]:
    """The pools of `train` and `validation`. Raises CorpusError when a split that is needed has nothing to ask."""
    chosen = {split: [k for k, other in enumerate(splits) if other == split and ATTRIBUTE_LINE.search(texts[k])]
              for split in ("train", "validation")}
    kept = {}
    for split, members in chosen.items():
        cuts = cut_all([texts[k] for k in members], tokenizer, spec.maximum_document_tokens)
        kept[split] = [(ids[k], text) for k, text in zip(members, cuts) if askable(text)]
        if not kept[split] and (split == "train" or spec.validation_tokens):
            raise CorpusError(
                f"no document of the {split} split has a line `name : value` within {spec.maximum_document_tokens} "
                "tokens; recall rows are made of such lines (numpy, scipy and pandas write them), so choose other "
                "documents, or set validation_tokens=0 if only that split is small")
    pairs = [(found.name, found.value) for _, text in kept["train"] for found in askable(text)]
    values = sorted({value for _, value in pairs})
    short = {value for value, tokens in zip(values, tokenizer.encode_batch([f" {value}" for value in values]))
             if len(tokens) <= LIST_VALUE_TOKENS} or set(values)
    shared = {"names": [name for name, _ in pairs], "swap_values": values,
              "list_values": [value for _, value in pairs if value in short]}
    return {split: Pool([name for name, _ in found], [text for _, text in found], **shared)
            for split, found in kept.items()}


def estimate_rows(window: Window, pool: Any, tokenizer: Tokenizer, spec: RecallRowsSpec | QuestionRowsSpec) -> int:
    """How many rows the token budget buys, from the mean length of a sample of each form."""
    means = []
    for share in (0.0, 1.0):
        rows, _ = window(range(SAMPLE), np.full(SAMPLE, share), pool, tokenizer, spec, "sample")
        means.append(sum(len(row.ids) for row in rows) / SAMPLE)
    list_share = (spec.list_share_first + spec.list_share_last) / 2
    mean = (1 - list_share) * means[0] + list_share * means[1]
    if mean == 0:
        raise CorpusError(f"no row fits into maximum_row_tokens={spec.maximum_row_tokens}; allow longer rows or cut "
                          "documents shorter (maximum_document_tokens, passage_tokens)")
    return max(1, round(spec.tokens / mean))


def list_shares(rows: np.ndarray, total: int, spec: RecallRowsSpec | QuestionRowsSpec) -> np.ndarray:
    """The share of list rows at each row number: linear from the first row to the last."""
    progress = np.minimum(rows / max(total - 1, 1), 1)
    return spec.list_share_first + (spec.list_share_last - spec.list_share_first) * progress


def window(numbers: Sequence[int], shares: np.ndarray, pool: Pool, tokenizer: Tokenizer, spec: RecallRowsSpec,
           purpose: str = "row") -> tuple[list[Row], Counter]:
    """The rows of these numbers, in order, and how many were left out for which reason.

    shares  the share of list rows at each number
    """
    draws = [generator(spec.seed, number, purpose) for number in numbers]
    is_list = [draw.random() < share for draw, share in zip(draws, shares)]
    shown = _documents(draws, is_list, pool, tokenizer, spec)
    left_out: Counter[str] = Counter()
    drafts = []
    for draw, (form, document_id, document) in zip(draws, shown):
        draft = _draft(draw, form, document_id, document, pool, spec)
        if draft is None:
            left_out[f"{form}: nothing left to ask"] += 1
        else:
            drafts.append(draft)
    return tokenised(drafts, tokenizer, spec.maximum_row_tokens, left_out), left_out


def tokenised(drafts: Sequence[Draft], tokenizer: Tokenizer, maximum_tokens: int, left_out: Counter) -> list[Row]:
    """The drafts as rows, in order; those that cannot be are counted in `left_out`."""
    texts = [draft.prompt.text + "".join(f"{cue} {value}\n" for cue, value in draft.lines) for draft in drafts]
    rows = []
    for draft, ids in zip(drafts, tokenizer.encode_batch(texts)):
        if len(ids) + 1 > maximum_tokens:
            left_out["longer than maximum_row_tokens"] += 1
            continue
        row = _row(draft, ids, tokenizer)
        if row is None:
            left_out["a token crosses the edge of a value"] += 1
        else:
            rows.append(row)
    return rows


def _documents(draws: list[np.random.Generator], is_list: list[bool], pool: Pool, tokenizer: Tokenizer,
               spec: RecallRowsSpec) -> list[tuple[str, str, str]]:
    """(form, document id, text) of each row; a swapped document is cut again, its values being longer or shorter."""
    shown = []
    for draw, listed in zip(draws, is_list):
        if listed:
            shown.append(("list", "", _list(draw, pool, spec)))
            continue
        k = int(draw.integers(len(pool)))
        form, text = "document", pool.documents[k]
        if draw.random() < spec.swap_share:
            names = dict.fromkeys(found.name for found in attributes(text))
            picks = draw.integers(len(pool.swap_values), size=len(names))
            form, text = "swap", with_values(text, {name: pool.swap_values[p] for name, p in zip(names, picks)})
        shown.append((form, pool.ids[k], text))
    swapped = [k for k, (form, *_) in enumerate(shown) if form == "swap"]
    cuts = cut_all([shown[k][2] for k in swapped], tokenizer, spec.maximum_document_tokens)
    for k, text in zip(swapped, cuts):
        shown[k] = ("swap", shown[k][1], text)
    return shown


def _list(draw: np.random.Generator, pool: Pool, spec: RecallRowsSpec) -> str:
    """A few lines with distinct names. Names repeat in the pool, so draw until there are enough."""
    fewest, most = spec.list_lines
    wanted = int(draw.integers(fewest, most + 1))
    names: dict[str, None] = {}
    for _ in range(64):
        for k in draw.integers(len(pool.names), size=wanted):
            names.setdefault(pool.names[k])
        if len(names) >= wanted:
            break
    values = draw.integers(len(pool.list_values), size=wanted)
    return "\n".join(f"{name} : {pool.list_values[k]}" for name, k in zip(names, values))


def _draft(draw: np.random.Generator, form: str, document_id: str, document: str, pool: Pool,
           spec: RecallRowsSpec) -> Draft | None:
    found = askable(document)
    if not found:
        return None
    asked = [found[k] for k in draw.permutation(len(found))[: spec.maximum_questions]]
    order = order_of(draw.random(), spec.order_shares)
    filler = _filler(draw, document, pool) if order == "filler" else None
    prompt = compose(order, document, question_for(asked[0].name), "", filler)
    return Draft(form, order, document_id, prompt, [(question_for(one.name), one.value) for one in asked])


def order_of(draw: float, shares: Mapping[str, float]) -> str:
    """The prompt order that a draw from [0, 1) falls on."""
    names = sorted(shares)
    ends = list(itertools.accumulate(shares[name] for name in names))
    return names[min(bisect.bisect_right(ends, draw * ends[-1]), len(names) - 1)]


def _filler(draw: np.random.Generator, document: str, pool: Pool) -> str:
    """Another document that names nothing which this one names, if a few tries find one."""
    names = {found.name for found in attributes(document)}
    for k in draw.integers(len(pool), size=16):
        text = pool.documents[k]
        if text != document and not names & {found.name for found in attributes(text)}:
            break
    return text


def _row(draft: Draft, ids: list[int], tokenizer: Tokenizer) -> Row | None:
    """Find the blank line and the values among the tokens; None if a token straddles one of those edges."""
    ends_L = tokenizer.byte_ends(ids)
    begins_L = ends_L - tokenizer.byte_lengths[ids]
    at = len(draft.prompt.text.encode())
    edges, spans = [at], []
    for cue, value in draft.lines:
        begin = at + len(cue.encode())
        at = begin + len(f" {value}\n".encode())
        spans.append((begin, at))
        edges += [begin, at]
    first_after = np.searchsorted(begins_L, edges)           # first token that begins at an edge or later
    begins_at = np.append(begins_L, ends_L[-1])[first_after]
    if not np.array_equal(begins_at, edges):
        return None
    slots = np.concatenate([np.arange(*np.searchsorted(begins_L, span)) for span in spans])
    # The end-of-text id stands before the text, so token t of the text is ids[t + 1] and slot t predicts it.
    whole = np.array([tokenizer.end_of_text, *ids], dtype=np.uint32)
    return Row(whole, int(first_after[0]) + 1, slots.astype(np.int32), draft.order, draft.form, draft.document_id)
