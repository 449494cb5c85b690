"""Weights out: a model as a folder that `AutoModelForCausalLM.from_pretrained(..., trust_remote_code=True)` loads.

The folder holds config.json (our ModelConfig in its section `reread`, and where the code lies), model.safetensors, the
file modeling_reread.py, generation_config.json and, where there is a tokenizer, its Hugging Face form. The code file
imports the installed packages rather than repeating them: there is one truth about every mixer, and it is tested.
transformers is imported inside the functions only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.errors import ConfigError
from models.language_model import LanguageModel


@dataclass(frozen=True)
class HubTokenizer:
    """A tokenizer as the `tokenizers` library writes it, and which of its entries are special.

    `text` is the JSON; `end_of_text`, `pad` and `mask` are entries of its vocabulary; mask None = no such entry.
    """

    text: str
    end_of_text: str
    pad: str
    mask: str | None = None


def export_model(model: LanguageModel, folder: Path, tokenizer: HubTokenizer | None, version: str) -> None:
    """Write the model, in its own dtype, and the tokenizer into `folder`.

    version: of this package, kept in config.json. Raises ConfigError for a tokenizer that names entries it lacks.
    """
    from transformers.utils import logging

    from models.adapters.modeling_reread import RereadConfig, RereadForCausalLM

    special = {} if tokenizer is None else _write_tokenizer(tokenizer, folder, model.able.max_length)
    config = RereadConfig(reread=model.config.model_dump(mode="json"), reread_version=version, **special)
    with torch.device("meta"):
        exported = RereadForCausalLM(config)
    exported.model = model
    exported.generation_config.do_sample = False
    exported.generation_config._from_model_config = False      # it is written here, not guessed from the config
    told = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        exported.save_pretrained(folder)
    finally:
        if told:
            logging.enable_progress_bar()


def _write_tokenizer(tokenizer: HubTokenizer, folder: Path, max_length: int | None) -> dict[str, int]:
    """Write tokenizer.json and its config; the ids of special entries, as model configs name them."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(tokenizer.text)
    rows = backend.get_vocab_size(with_added_tokens=True)
    named = {"bos_token": tokenizer.end_of_text, "eos_token": tokenizer.end_of_text, "pad_token": tokenizer.pad}
    if tokenizer.mask is not None:
        named["mask_token"] = tokenizer.mask
    for role, entry in named.items():
        if backend.token_to_id(entry) is None:
            raise ConfigError(f"tokenizer: {role} {entry!r} is not among its {rows} entries")
    # prompts are padded on the left, and a text that spells a special entry is ordinary text
    found = PreTrainedTokenizerFast(tokenizer_object=backend, padding_side="left", split_special_tokens=True,
                                    clean_up_tokenization_spaces=False, **named,
                                    **({} if max_length is None else {"model_max_length": max_length}))
    found.save_pretrained(folder)
    return {"bos_token_id": found.bos_token_id, "eos_token_id": found.eos_token_id, "pad_token_id": found.pad_token_id}
