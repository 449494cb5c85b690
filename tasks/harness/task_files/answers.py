"""Data and metrics of the tasks in this folder, for lm-evaluation-harness: prompts with their acceptable answers."""

import json
import re
from pathlib import Path


def load(jsonl, **_):
    """{"test": the prompts in the file `jsonl` beside this one}."""
    from datasets import Dataset

    lines = (Path(__file__).resolve().parent / jsonl).read_text(encoding="utf-8").splitlines()
    return {"test": Dataset.from_list([json.loads(line) for line in lines])}


def contains(references, predictions, **_):
    """1 when the answer occurs in what is said, letter case aside; lm_eval asks for each acceptable answer in turn."""
    return float(any(re.search(re.escape(answer), predictions[0], re.IGNORECASE) for answer in references))


def exact(references, predictions, **_):
    """1 when what is said is the answer, blanks around either aside."""
    return float(predictions[0].strip() in [answer.strip() for answer in references])
