"""A reread model as transformers sees it: the config, the model with its loss and generation, the cache.

This one file is both a module of the installed packages and the code that an exported folder carries
(`trust_remote_code=True`). It wraps the installed architecture instead of repeating it, so that an exported model
and ours cannot drift apart; a machine without those packages is told what to install.

Letters: B rows, L slots, E vocabulary rows, D width. Pads are read from `attention_mask` alone, on either side or in
between, and change nothing. A *prefix* model reads the first `prefix_length` tokens of a row both ways: `generate`
sets it to the prompt (at most the config's `prefix_tokens`; 0 reads causally), `forward` reads causally unless told,
since a prefix that holds the labels would let the model see what it has to predict.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils import can_return_tuple, logging

try:
    from kernels.errors import LayoutError, UnsupportedUse
    from kernels.layout import Layout
    from models.config import ModelConfig
    from models.language_model import LanguageModel
    from models.state import ModelState
except ImportError as error:
    raise ImportError(
        f"this model runs on the reread packages (`models`, `kernels`), which cannot be imported here ({error}). "
        "Install reread: `pip install .` in a clone of its repository. If other packages called `models` or "
        "`kernels` come first on the Python path, take them off it.") from error

logger = logging.get_logger(__name__)


class RereadConfig(PreTrainedConfig):
    """`reread` holds our ModelConfig as JSON; the fields that other tools look for are copied from it."""

    model_type = "reread"

    reread: dict[str, Any] | None = None
    reread_version: str | None = None
    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0
    tie_word_embeddings: bool = True
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.reread is not None:
            config = self.architecture()
            self.vocab_size, self.hidden_size = config.table_rows, config.width
            self.num_hidden_layers, self.tie_word_embeddings = config.layers, config.tie
        super().__post_init__(**kwargs)

    def architecture(self) -> ModelConfig:
        """The model config. ValueError says which version wrote it when this one cannot read it."""
        if self.reread is None:
            raise ValueError("config.json has no `reread` section, which describes the architecture; "
                             "export the model again with `reread export`")
        try:
            return ModelConfig.model_validate(self.reread)
        except ValueError as error:
            raise ValueError(f"`reread` of config.json was written by reread {self.reread_version or 'unknown'} and "
                             f"does not fit the version installed here: {error}") from error

    @property
    def prefix_tokens(self) -> int | None:
        """M of a prefix model's prompts; None = the whole prompt."""
        return (self.reread or {}).get("prefix_tokens")


class RereadCache(Cache):
    """The model's state between calls, in place of keys and values. A fixed-size state cannot be cut back."""

    def __init__(self, state: ModelState, slots: int):
        super().__init__(layers=[])
        self.state, self.slots = state, slots

    def __repr__(self) -> str:
        return f"RereadCache({self.state!r}, {self.slots} slots)"

    def __len__(self) -> int:
        return len(self.state.layers)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Slots given so far, pads included."""
        return self.slots

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    @property
    def nbytes(self) -> int:
        """Bytes of the state."""
        return self.state.nbytes

    @property
    def batch_size(self) -> int:
        return self.state.rows

    # what transformers asks before it cuts, compiles or re-reads a cache
    is_compileable = False
    is_croppable = False
    is_initialized = True
    is_linear = [False]
    is_sliding = [False]
    is_dummy = [False]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Rows by their numbers: beams."""
        self.state = self.state.select(beam_idx.to(self.state.device))

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        rows = torch.arange(self.state.rows, device=self.state.device)
        self.reorder_cache(rows.repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise UnsupportedUse("a state of fixed size cannot forget its last tokens; "
                                 "copy.deepcopy the cache before the tokens that may be taken back")


class RereadForCausalLM(PreTrainedModel, GenerationMixin):
    """LanguageModel behind transformers' interface; its weights are those of `model`, under the same names.

    A tied head is the embedding's own matrix, one tensor in the file, so there is nothing to tie after loading.
    """

    config_class = RereadConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _tied_weights_keys: dict[str, str] = {}
    _no_split_modules = ["Block"]

    def __init__(self, config: RereadConfig):
        super().__init__(config)
        self._drawn = torch.empty(0).device.type != "meta"
        architecture = config.architecture()
        self.model = LanguageModel(architecture, initialise=self._drawn)
        unused = list(range(architecture.vocabulary, architecture.table_rows))
        self.generation_config.suppress_tokens = unused or None     # rows that fill the table up are no tokens
        self.generation_config.use_cache = self.model.able.streaming
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Nothing to draw: the architecture drew its own, and a file that lacks a weight is refused."""
        if self._drawn:
            return
        named = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        missing = [name for name, tensor in named if not getattr(tensor, "_is_hf_initialized", False)]
        if missing:
            place = next(name for name, each in self.named_modules() if each is module)
            raise ValueError(f"the weights file has no usable {', '.join(f'{place}.{name}' for name in missing)}; "
                             "was a mixer changed since the export? Export the checkpoint again")

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.model.embedding

    def set_input_embeddings(self, value: torch.nn.Module) -> None:
        raise UnsupportedUse("the embedding cannot be exchanged: its rows belong to the architecture's config")

    def get_output_embeddings(self) -> torch.nn.Module | None:
        """The head of an untied model."""
        return self.model.head_proj

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any):
        """Only a look: the table keeps its rows."""
        if new_num_tokens not in (None, self.config.vocab_size):
            raise UnsupportedUse(f"the embedding has {self.config.vocab_size} rows and cannot get {new_num_tokens}; "
                                 "train with a larger `vocabulary`")
        return self.model.embedding

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    # ------------------------------------------------------------------------------------------------------- one call
    @can_return_tuple
    def forward(
        self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
        cache: RereadCache | None = None, labels: torch.Tensor | None = None, use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0, prefix_length: int | torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None, output_hidden_states: bool | None = None,
        output_attentions: bool | None = None, **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (B, L, E), 0 at pads; the mean cross entropy of `labels` where given; with use_cache, the state.

        attention_mask   (B, L), or the whole row's with a cache; 0 = pad, which may hold any id
        labels           (B, L) token ids, shifted here; -100, pads and first tokens ask for nothing
        prefix_length    tokens read both ways, one number or (B,), at most the row's; prefix models only
        Raises LayoutError for labels inside the prefix, ValueError for what this model does not give.
        """
        if input_ids is None or inputs_embeds is not None:
            raise ValueError("got inputs_embeds, expected input_ids: the model embeds tokens itself")
        if output_hidden_states or output_attentions:
            raise ValueError("hidden states and attentions are not given out; use `model.model.hidden` for the last")
        cache = kwargs.pop("past_key_values", None) if cache is None else cache      # its name before transformers 5.24
        if cache is not None and not hasattr(cache, "state"):
            raise ValueError(f"cache: got a {type(cache).__name__}, expected what this model returned as `cache`")
        B, L = input_ids.shape
        layout = self._layout(input_ids, attention_mask, prefix_length)
        if cache is not None:
            if layout.prefixed:
                raise LayoutError("got prefix_length with a cache, expected none: the first call closes the prefix")
            logits, state = self._further(input_ids, layout, cache.state, logits_to_keep)
            cache.state, cache.slots = state, cache.slots + L
        elif use_cache:
            at_end = _is_last(logits_to_keep) and bool(layout.real_BL[:, -1].all())
            logits, state = self.model.prefill(input_ids, layout, all_logits=not at_end)
            logits = logits[:, None] if at_end else slice_logits_to_keep(logits, logits_to_keep)
            cache = RereadCache(state, L)
        else:
            logits = self.model.head(slice_logits_to_keep(self.model.hidden(input_ids, layout), logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=_wanted(labels, layout),
                                      vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, cache=cache)

    def _further(self, ids_BL: torch.Tensor, layout: Layout, state: ModelState, logits_to_keep: int | torch.Tensor,
                 ) -> tuple[torch.Tensor, ModelState]:
        if ids_BL.shape[1] == 1 and not layout.padded:
            logits_BE, state = self.model.step(ids_BL[:, 0], state)
            return logits_BE[:, None], state
        logits_BLE, state = self.model.extend(ids_BL, layout, state, all_logits=True)
        return slice_logits_to_keep(logits_BLE, logits_to_keep), state

    def _layout(self, ids_BL: torch.Tensor, mask: torch.Tensor | None, prefix: int | torch.Tensor | None) -> Layout:
        B, L = ids_BL.shape
        if mask is None:
            layout = Layout.dense(B, L, device=ids_BL.device)
        else:
            if mask.ndim != 2 or mask.shape[0] != B or mask.shape[1] < L:
                raise ValueError(f"attention_mask: got {tuple(mask.shape)}, expected ({B}, {L}), or more columns with "
                                 "a cache: 1 at tokens, 0 at pads")
            layout = Layout.from_mask(mask[:, mask.shape[1] - L:].bool().cpu()).to(ids_BL.device)
        if prefix is None or not self.model.able.prefix:
            return layout
        return layout.with_prefix(prefix.tolist() if isinstance(prefix, torch.Tensor) else prefix)

    # ----------------------------------------------------------------------------------------------------- generation
    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, cache: RereadCache | None = None,
        prefix_length: int | torch.Tensor | None = None, is_first_iteration: bool | None = False, **kwargs: Any,
    ) -> dict[str, Any]:
        """Arguments of the next `forward`: the whole prompt, then one token at a time."""
        inputs = super().prepare_inputs_for_generation(
            input_ids, attention_mask=attention_mask, cache=cache, is_first_iteration=is_first_iteration, **kwargs)
        mask = attention_mask if attention_mask is not None else torch.ones_like(input_ids)
        if is_first_iteration and not mask.any(dim=1).all():
            raise ValueError("generate: a prompt has no tokens, expected one or more: begin it with the end-of-text id")
        if is_first_iteration and not mask[:, -1].all():
            raise ValueError("generate: a row of attention_mask ends with pads, expected padding on the left: "
                             "the new tokens follow the last slot (tokenizer.padding_side = 'left')")
        if cache is None:
            inputs["prefix_length"] = self._prompt_prefix(input_ids, attention_mask, prefix_length)
        elif not is_first_iteration:
            inputs["attention_mask"] = None                          # new tokens are never pads
        return inputs

    def _prompt_prefix(self, ids_BL: torch.Tensor, mask: torch.Tensor | None, limit: int | torch.Tensor | None,
                       ) -> torch.Tensor | None:
        """m of each row, (B,): all real tokens so far, at most `limit` or else the config's."""
        if not self.model.able.prefix:
            return None
        m_B = (torch.full(ids_BL.shape[:1], ids_BL.shape[1], device=ids_BL.device) if mask is None
               else mask.long().sum(1))
        limit = self.config.prefix_tokens if limit is None else limit
        return m_B if limit is None else torch.minimum(m_B, torch.as_tensor(limit, device=m_B.device))

    def _update_model_kwargs_for_generation(self, outputs: Any, model_kwargs: dict[str, Any], *args: Any,
                                            **kwargs: Any) -> dict[str, Any]:
        """Keeps the prompt's prefix for generation without a cache, which reads everything anew at each token."""
        mask = model_kwargs.get("attention_mask")
        if mask is not None:
            model_kwargs["prefix_length"] = self._prompt_prefix(mask, mask, model_kwargs.get("prefix_length"))
        return super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **kwargs)


def _is_last(logits_to_keep: int | torch.Tensor) -> bool:
    return isinstance(logits_to_keep, int) and logits_to_keep == 1


def _wanted(labels_BL: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Labels with -100 wherever the slot before is no token of the row. LayoutError for one inside a prefix."""
    real_BL = layout.real_BL
    follows_BL = real_BL & torch.cat([torch.zeros_like(real_BL[:, :1]), real_BL[:, :-1]], 1)
    labels_BL = torch.where(follows_BL, labels_BL, -100)
    inside_BL = (labels_BL != -100) & layout.in_prefix_BL
    if layout.prefixed and inside_BL.any():
        row, slot = inside_BL.nonzero()[0].tolist()
        raise LayoutError(f"labels, row {row}, slot {slot}: asks for a token inside the prefix, which the model reads; "
                          "set the labels of the first prefix_length tokens to -100")
    return labels_BL


RereadConfig.register_for_auto_class()
RereadForCausalLM.register_for_auto_class("AutoModelForCausalLM")
