"""lm-evaluation-harness's model `reread`: our checkpoints, and models of transformers as `hf:`, for every request type.

What is scored and said equals lm_eval's own class on the same weights, in any batches: contexts and continuations are
split into tokens by lm_eval's own rules, an empty context is the end-of-text token, windows of rolling requests are
lm_eval's. Three things are ours. A model that reads a prefix reads the context of a request as such, but for its last
token (keep_out), and never the continuation; a rolling request has no context, hence no prefix. What does not fit
is cut where `truncate` says and counted. Answers come from the generation of an evaluation, so greedily.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from storage import logs
from storage.errors import SpecError, UnsupportedUse
from tasks.harness import NAME
from tasks.harness.limits import Limit, Side
from tasks.harness.opening import opened
from tasks.harness.scoring import Pair, score
from tasks.harness.stopping import cut_text, stop_tokens

LENGTH = 2048          # of a model without a limit of its own, as lm_eval takes it
ROWS = 32              # prompts answered together where batch_size is auto
NEW = 256              # tokens of an answer, where a task does not say
IDLE = {"do_sample", "temperature", "top_p", "top_k", "until", "max_gen_toks"}      # without a say in greedy answers
KEEP_OUT = {"one": 1, "none": 0}

log = logs.get("tasks.harness")


@register_model(NAME)
class RereadLM(TemplateLM):
    """See the module. Arguments as `--model_args name=value,...`.

    checkpoint       an artifact's id, a model folder of ours, or `hf:<folder or hub name>`
    tokenizer        instead of the one beside the weights: bytes, gpt2, hf:<name>
    batch_size       rows of one forward; auto = as many as suit their length
    dtype, device    of the weights; the device defaults to the GPU, if there is one
    max_length       tokens the model is given; None = all it can place, or 2048 where it has no limit
    truncate         left (lm_eval's way), right or error: where a context that is too long is cut
    prefix_tokens    M of models that read a prefix; None = the model's own; 0 = read causally
    keep_out         one: the last context token stays out of the prefix; none: it does not
    add_bos_token    None = as the model's tokenizer does by itself; True: the end-of-text token before every text
    prefix_token_id  what an empty context is; None = the token before every text, else end of text
    """

    def __init__(self, checkpoint: str, tokenizer: str | None = None, batch_size: int | str | None = "auto",
                 max_batch_size: int | None = None, device: str | None = None, dtype: str = "float32",
                 max_length: int | None = None, truncate: Side = "left", prefix_tokens: int | None = None,
                 keep_out: str = "one", add_bos_token: bool | None = None, prefix_token_id: int | None = None,
                 **unknown: Any) -> None:
        import torch

        super().__init__()
        unknown.pop("trust_remote_code", None)        # the command line adds it to every model's
        if unknown:
            raise SpecError(f"model_args: {NAME} does not know {', '.join(sorted(unknown))}; see docs/harness.md")
        if keep_out not in KEEP_OUT:
            raise SpecError(f"keep_out: got {keep_out!r}, expected one of {', '.join(KEEP_OUT)}")
        self._rows = _rows(batch_size, max_batch_size)
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._opened = opened(checkpoint, tokenizer, _dtype(dtype), self._device)
        self.model, self._words = self._opened.model.eval(), self._opened.tokenizer
        placed = self.model.able.max_length
        if max_length is not None and (max_length < 2 or placed is not None and max_length > placed):
            raise SpecError(f"max_length: got {max_length}, expected 2 to {placed or 'any number of'} tokens")
        self.limit = Limit(max_length or placed or LENGTH, truncate)
        self._M = self.model.config.prefix_tokens if prefix_tokens is None else prefix_tokens
        self._kept = KEEP_OUT[keep_out]
        end = (self._words.end_of_text,)
        self._leading = {None: self._opened.leading, True: self._opened.leading or end, False: ()}[add_bos_token]
        self._first = prefix_token_id if prefix_token_id is not None else (self._opened.leading or end)[0]

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict, additional_config: dict | None = None) -> RereadLM:
        """What `--model_args` says comes before the defaults of the command line (batch_size, device)."""
        given = {name: value for name, value in (additional_config or {}).items() if value is not None}
        return cls(**(given | arg_dict))

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict | None = None) -> RereadLM:
        """The same for the arguments as text."""
        from lm_eval.utils import simple_parse_args_string

        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    # ---------------------------------------------------------------------------------------- what lm_eval asks about
    @property
    def eot_token_id(self) -> int:
        """End of text."""
        return self._words.end_of_text

    @property
    def prefix_token_id(self) -> int:
        """What stands for an empty context."""
        return self._first

    @property
    def max_length(self) -> int:
        """Tokens the model is given at once."""
        return self.limit.length

    @property
    def max_gen_toks(self) -> int:
        """Tokens of an answer where the task does not say."""
        return NEW

    @property
    def batch_size(self) -> int | str:
        """Rows of one forward, or auto."""
        return self._rows or "auto"

    @property
    def tokenizer_name(self) -> str:
        """For lm_eval's cache of requests."""
        return self._words.name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, left_truncate_len: int | None = None,
                   **_: Any) -> list[int]:
        """Ids of a text; the leading ones before it, once, unless they are not wanted."""
        leading = () if add_special_tokens is False else self._leading
        spelled = self._opened.leading_text
        if leading and spelled and string.startswith(spelled):
            string = string.removeprefix(spelled)
        ids = [*leading, *self._words.encode(string)]
        return ids[-left_truncate_len:] if left_truncate_len else ids

    def tok_decode(self, tokens: Sequence[int], **_: Any) -> str:
        """Text of ids."""
        return self._words.decode(tokens)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Refused: these models continue text."""
        raise UnsupportedUse(f"{self._opened.name} has no chat template; leave out --apply_chat_template")

    def get_model_info(self) -> dict[str, Any]:
        """For results.json: which model, and what was cut of which requests."""
        return {"model_name": self._opened.name, "model_dtype": str(self.model.embedding.weight.dtype),
                "model_num_parameters": sum(each.numel() for each in self.model.parameters()),
                "max_length": self.max_length, "truncate": self.limit.side,
                "cut": {kind: vars(counted) for kind, counted in self.limit.cuts.items()}}

    # ------------------------------------------------------------------------------------------------------ likelihood
    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """As lm_eval splits them. A continuation that melts into the context's last token, with which lm_eval's own
        class fails, is encoded apart."""
        before, after = super()._encode_pair(context, continuation)
        if after or not continuation:
            return before, after
        return self.tok_encode(context), self.tok_encode(continuation, add_special_tokens=False)

    def _loglikelihood_tokens(self, requests: Sequence[tuple], disable_tqdm: bool = False, **_: Any,
                              ) -> list[tuple[float, bool]]:
        """requests: ((context, continuation), their ids, their ids)."""
        pairs = [self._pair("loglikelihood", context or [self._first], continuation)
                 for _, context, continuation in requests]
        self.limit.tell("loglikelihood")
        answers = score(self.model, pairs, self._rows)
        for (texts, _, _), answer in zip(requests, answers):
            self.cache_hook.add_partial("loglikelihood", texts, answer)
        return answers

    def _pair(self, kind: str, context: Sequence[int], continuation: Sequence[int]) -> Pair:
        context = self.limit.context(kind, context, len(continuation) - 1 if continuation else 0)
        return Pair(tuple(context), tuple(continuation), self._prefix(len(context)))

    def _prefix(self, length: int) -> int:
        """m of a context of this length."""
        free = max(0, length - self._kept)
        return free if self._M is None else min(self._M, free)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood [nats] of whole texts, each token once and with as much before it as lm_eval's windows hold."""
        pairs, counts = [], []
        for request in requests:
            windows = get_rolling_token_windows(token_list=self.tok_encode(request.args[0]), prefix_token=self._first,
                                                max_seq_len=self.max_length, context_len=1)
            own = [Pair(*map(tuple, make_disjoint_window(window))) for window in windows]
            pairs += own
            counts.append(len(own))
        answers = iter(score(self.model, pairs, self._rows))
        sums = [sum(next(answers)[0] for _ in range(count)) for count in counts]
        for request, total in zip(requests, sums):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    # ------------------------------------------------------------------------------------------------------ generation
    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Greedy answers up to the first stop string, the end of text or max_gen_toks tokens.

        Prompt and answer together never exceed max_length: room for the whole answer is kept. Raises UnsupportedUse
        for sampling and beams.
        """
        groups: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(self._settings(request.args[1]), []).append(number)
        found: dict[int, str] = {}
        for (new, until), numbers in groups.items():
            texts = self._answers([requests[k].args[0] for k in numbers], new, until)
            found |= dict(zip(numbers, texts))
        self.limit.tell("generate_until")
        for number, request in enumerate(requests):
            self.cache_hook.add_partial("generate_until", request.args, found[number])
        return [found[number] for number in range(len(requests))]

    def _settings(self, given: dict[str, Any]) -> tuple[int, tuple[str, ...]]:
        """(max_gen_toks, stop strings) of a request."""
        wanted = normalize_gen_kwargs(given, self.max_gen_toks)
        if wanted["do_sample"]:
            raise UnsupportedUse("generate_until: got do_sample or a temperature above 0, expected greedy decoding "
                                 "(do_sample=False)")
        other = {name for name in wanted.keys() - IDLE if wanted[name] not in (None, 1, 1.0)}
        if other:
            raise UnsupportedUse(f"generate_until: {', '.join(sorted(other))} would change a greedy answer, "
                                 f"which {NAME} does not do; leave it out")
        return wanted["max_gen_toks"], tuple(wanted["until"])

    def _answers(self, texts: Sequence[str], new: int, until: tuple[str, ...]) -> list[str]:
        from models import greedy

        prompts = [self.limit.context("generate_until", self.tok_encode(text) or [self._first], new) for text in texts]
        ids = greedy(self.model, prompts, prefix=[self._prefix(len(prompt)) for prompt in prompts], maximum_new=new,
                     stop=stop_tokens(self._words, until), batch_rows=self._rows or ROWS, keep_out=self._kept)
        return [cut_text(self._words.decode(each), until) for each in ids]


def _rows(batch_size: int | str | None, most: int | None) -> int | None:
    """Rows of a forward; None for auto. Raises SpecError for anything else."""
    if batch_size is None or str(batch_size).startswith("auto"):
        return most
    if not str(batch_size).isdigit() or int(batch_size) < 1:
        raise SpecError(f"batch_size: got {batch_size!r}, expected 1 or more, or auto")
    return int(batch_size)


def _dtype(name: str) -> Any:
    import torch

    known = ("float32", "float64", "bfloat16", "float16")
    if name not in known:
        raise SpecError(f"dtype: got {name!r}, expected one of {', '.join(known)}")
    return getattr(torch, name)
