"""Perplexity stage: a checkpoint reads text, and its loss is kept for every target and summed up by slices.

tokens.arrow      one row per target: sequence, position (of the target in it), id, nll [nats], is_ar, distance, count
perplexity.json   one row per slice (tasks/slices.py): slice, kind, from, to, condition, share, n, sequences, and loss,
                  perplexity and bits per byte with 95 % intervals over sequences (tasks/perplexity_scores.py)

The first `prefix_share` of a sequence is read and never scored: prefix models read it both ways, others as ever, so that
all are scored on the same targets, the causal suffix (JRT App. B.4). As in training (contract 3, boundary `released`)
the first target after the prefix is not asked for. One forward a sequence; losses are kept group by group in the work
folder, where a killed attempt finds them.

Letters: B sequences, N targets of each, S targets that are scored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage import logs
from storage.artifacts import Store, artifact_id
from storage.errors import SpecError
from storage.progress import progress
from storage.shards import RowTable, ShardWriter
from tasks.bigrams import TOKENIZER, Bigrams
from tasks.perplexity_models import Source, check_ids, device_of, read_with, target_losses, threads
from tasks.perplexity_scores import score
from tasks.perplexity_sequences import Group, Sequences, opened
from tasks.slices import identify
from tasks.specs import PerplexitySpec
from tasks.tokenizers import load_tokenizer

KIND = "perplexity"
SCORES, TOKENS = "perplexity.json", "tokens.arrow"
KEPT = 8                # batches between two writes
LOSSES = ".losses"
SCHEMA = pa.schema([("sequence", pa.int32()), ("position", pa.int32()), ("id", pa.int32()), ("nll", pa.float32()),
                    ("is_ar", pa.bool_()), ("distance", pa.int32()), ("count", pa.int64())])

log = logs.get("tasks.perplexity")


def plan(spec: PerplexitySpec, store: Store | None, checkpoint: str, shards: str | None = None, corpus: str | None = None,
         bigrams: str | None = None, mixers: Iterable[str] | None = None) -> str:
    """The id that `run` would return; nothing is read, and the inputs need not exist."""
    source = Source(checkpoint)
    return artifact_id(KIND, spec.model_dump(mode="json"), _inputs(source, shards, corpus, bigrams),
                       source.code(__name__, mixers))


def run(spec: PerplexitySpec, store: Store, checkpoint: str, shards: str | None = None, corpus: str | None = None,
        bigrams: str | None = None, tracking: Any = None, run_id: str = "", mixers: Iterable[str] | None = None) -> str:
    """Read the text and return the id of the `perplexity` artifact.

    checkpoint        an artifact, or a model of transformers as `hf:<folder or hub name>`
    shards, corpus    one of them: rows of shards, or documents of a corpus, tokenised by the checkpoint's tokenizer
    bigrams           training counts; None = no slices by frequency, and those by distance take every count
    tracking, run_id  where headline numbers are logged, if anywhere
    mixers            kinds of mixer in the checkpoint, part of the identity; None = all there are
    Raises SpecError unless exactly one text is given, ArtifactError where tokenizers differ, LengthError.
    """
    source = Source(checkpoint)

    def make(folder: Path) -> dict[str, Any]:
        model, tokenizer = source.load(store, spec.dtype)
        places = [store.path(each) if each else None for each in (shards, corpus, bigrams)]
        counts = build(spec, model, tokenizer, *places, folder)
        if tracking is not None:
            tracking.metrics(run_id, {name: counts[name] for name in ("perplexity", "perplexity_ar", "perplexity_other")
                                      if counts[name] is not None}, step=0)
        return counts | ({"source": checkpoint} if source.outside else {})

    return store.produce(KIND, spec.model_dump(mode="json"), _inputs(source, shards, corpus, bigrams),
                         source.code(__name__, mixers), make)


def _inputs(source: Source, shards: str | None, corpus: str | None, bigrams: str | None) -> dict[str, str]:
    if bool(shards) == bool(corpus):
        raise SpecError("perplexity reads either `shards`, fixed rows of tokens, or `corpus`, documents; give one of them")
    given = {"checkpoint": source.identity, "shards": shards, "corpus": corpus, "bigrams": bigrams}
    return {name: identifier for name, identifier in given.items() if identifier}


def build(spec: PerplexitySpec, model: Any, tokenizer: Any, shards: Path | None, corpus: Path | None,
          bigrams: Path | None, folder: Path) -> dict[str, Any]:
    """Write tokens.arrow and perplexity.json; return headline numbers. shards, corpus, bigrams: artifact folders."""
    sequences = opened(spec, shards, corpus, tokenizer)
    counts, end = None, tokenizer.end_of_text
    if bigrams is not None:
        counts, written = Bigrams(bigrams), load_tokenizer(bigrams / TOKENIZER)
        read_with(tokenizer, written, f"the text behind {bigrams.name}")
        end = written.end_of_text
    with threads(spec.threads), ShardWriter(folder / TOKENS, SCHEMA, batch_rows=1 << 16) as writer:
        for group, slot_S, nll_S in _read(spec, model, sequences, folder / LOSSES):
            N = group.ids_BN.shape[1] - 1
            counted_BN = np.where(group.ids_BN == tokenizer.end_of_text, end, group.ids_BN)
            writer.extend({"sequence": group.numbers_B[slot_S // N].astype(np.int32),
                           "position": (slot_S % N + 1).astype(np.int32),
                           "id": group.ids_BN[:, 1:].ravel()[slot_S].astype(np.int32), "nll": nll_S,
                           **identify(counted_BN, group.starts, slot_S, counts)})
    table = RowTable(folder / TOKENS)
    rows = score({name: table.column(name) for name in SCHEMA.names}, tokenizer.byte_lengths, spec)
    (folder / SCORES).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return _told(rows, sequences, model, spec, counts is not None)


def _told(rows: list[dict[str, Any]], sequences: Sequences, model: Any, spec: PerplexitySpec, counted: bool,
          ) -> dict[str, Any]:
    whole, recall, other = rows[:3]
    far = sum(row["n"] for row in rows if row["slice"] == "frequency" and row["kind"] == "ar")
    if counted and recall["n"] and not far:
        log.warning("no recall token repeats %d tokens back: the slices by frequency are empty; lower minimum_distance",
                    spec.minimum_distance)
    log.info("perplexity %s (recall %s, other %s) on %d targets of %d sequences", *(
        "-" if row["perplexity"] is None else f"{row['perplexity']:.2f}" for row in rows[:3]), whole["n"], len(sequences))
    return {"targets": whole["n"], "sequences": len(sequences), "left_out": sequences.left_out,
            "perplexity": whole["perplexity"], "perplexity_ar": recall["perplexity"],
            "perplexity_other": other["perplexity"], "bits_per_byte": whole["bits_per_byte"],
            "prefix": "both ways" if spec.read_prefix and model.able.prefix and spec.prefix_share else "causal"}


def _read(spec: PerplexitySpec, model: Any, sequences: Sequences, kept: Path,
          ) -> Iterator[tuple[Group, np.ndarray, np.ndarray]]:
    """(group, flat slots b·N + i of its targets, their losses as float32), a few batches at a time from disk or model."""
    groups = sequences.groups(spec.batch_rows)
    with progress(len(sequences), "perplexity", "sequences") as bar:
        for number, some in enumerate(iter(lambda: list(islice(groups, KEPT)), [])):
            asked = [_batch(spec, model, group) for group in some]
            path = kept / f"{number:06d}.npy"
            if path.is_file():
                nll_S = np.load(path)
            else:
                nll_S = np.concatenate([_losses(model, batch) for batch in asked])
                _keep(path, nll_S)
            ends = np.cumsum([len(batch.terms["next"].index_S) for batch in asked])
            for group, batch, nll in zip(some, asked, np.split(nll_S, ends[:-1])):
                yield group, batch.terms["next"].index_S.numpy(), nll
            bar.advance(sum(len(group.numbers_B) for group in some))


def _batch(spec: PerplexitySpec, model: Any, group: Group) -> Any:
    """The batch that asks for the suffix of these sequences: what training's validation asks for."""
    from models.objectives import next_token_batch, prefix_lm_batch

    ids_BN, slots = group.ids_BN, group.ids_BN.shape[1] - 1
    prefix = int(slots * spec.prefix_share)
    if not (prefix and spec.read_prefix and model.able.prefix):
        return next_token_batch(ids_BN, group.starts, first_slot=prefix)
    return prefix_lm_batch(ids_BN, group.starts, prefix=prefix, mask_id=0, draws_BN=np.ones((len(ids_BN), slots)),
                           mask_share=0.0, boundary="released")


def _losses(model: Any, batch: Any) -> np.ndarray:
    """float32 [S]: the loss of every target [nats]."""
    import torch

    check_ids(model, batch.ids_BL.numpy(), "the text")
    with torch.no_grad():
        batch = batch.to(device_of(model))
        term = batch.terms["next"]
        x_SD = model.hidden(batch.ids_BL, batch.layout).flatten(0, 1)[term.index_S]
        return target_losses(model, x_SD, term.target_S).float().cpu().numpy()


def _keep(path: Path, nll_S: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}")
    with open(partial, "wb") as file:
        np.save(file, nll_S)
    os.replace(partial, path)
