"""ModelConfig: everything that decides a model's shape and its first weights (contract 7)."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, field_validator, model_validator

from kernels.errors import UnsupportedUse
from models import registry


class ModelConfig(BaseModel):
    """A language model: embedding, one block per entry of `plan`, norm, head.

    `mixers` names the mixer configs (as objects or as dicts with their `kind`); `plan` says which one each layer uses,
    "conv*3" meaning three layers of it. Wrong values raise pydantic's ValidationError, an unknown or broken mixer
    kind ConfigError, a mixer that is not causal UnsupportedUse.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    width: int = Field(ge=1, description="D, size of the residual stream")
    vocabulary: int = Field(ge=1, description="E, token ids in use; the table is rounded up to vocabulary_multiple")
    mixers: dict[str, SerializeAsAny[BaseModel]] = Field(description="Mixer configs by the names that the plan uses")
    plan: tuple[str, ...] = Field(description="One name per layer, or name*count")
    mlp: int | None = Field(None, ge=1, description="Hidden size of the MLP of each block; None = no MLP")
    mlp_kind: Literal["swiglu", "gelu"] = Field(
        "swiglu", description="swiglu: gated, without biases (JRT, Based); gelu: two layers with biases (GPT-2, fairseq)")
    norm: Literal["rms", "layer"] = Field("rms", description="rms: RMSNorm (JRT); layer: LayerNorm with bias (fairseq)")
    norm_eps: float = Field(1e-5, gt=0, description="Added under the root of every norm (GPT2Config, fairseq: 1e-5)")
    positions: Literal["none", "learned", "sinusoidal"] = Field("none", description="Added to the embedding")
    max_length: int | None = Field(None, ge=1, description="Rows of the learned position table [tokens]")
    tie: bool = Field(True, description="The head reads the embedding's matrix")
    seed: int = Field(0, ge=0, description="Draws the first weights")
    init_std: float = Field(0.02, gt=0, description="Deviation of matrices and embedding; out_proj and fc2 are "
                                                    "divided by sqrt(2 * layers)")
    vocabulary_multiple: int = Field(8, ge=1, description="The table's rows are a multiple of this (JRT: 8)")
    prefix_tokens: int | None = Field(None, ge=0, description="M of a prefix model's prompts; None = the whole prompt")

    @field_validator("mixers", mode="before")
    @classmethod
    def _build_mixers(cls, mixers: Any) -> Any:
        if not isinstance(mixers, dict):
            return mixers
        out = {}
        for name, value in mixers.items():
            if not re.fullmatch(r"\w+", str(name)):
                raise ValueError(f"mixer name {name!r}: use letters, digits and underscores")
            if isinstance(value, BaseModel):
                out[name] = value
                continue
            if not isinstance(value, dict) or "kind" not in value:
                raise ValueError(f"mixer {name!r} needs `kind`, one of {', '.join(registry.names())}")
            out[name] = registry.config_class(value["kind"]).model_validate(value)
        return out

    @field_validator("plan", mode="before")
    @classmethod
    def _expand_plan(cls, plan: Any) -> Any:
        if isinstance(plan, str):
            plan = plan.split()
        if not isinstance(plan, (list, tuple)):
            return plan
        layers: list[str] = []
        for item in plan:
            name, star, count = str(item).partition("*")
            if star and not count.isdecimal():
                raise ValueError(f"plan entry {item!r}: expected a name or name*count")
            layers += [name] * (int(count) if star else 1)
        return tuple(layers)

    @model_validator(mode="after")
    def _consistent(self) -> ModelConfig:
        if not self.plan:
            raise ValueError("plan: a model needs at least one layer")
        unknown = sorted(set(self.plan) - set(self.mixers))
        if unknown:
            raise ValueError(f"plan names {unknown}, but mixers defines {sorted(self.mixers)}")
        if self.positions == "learned" and self.max_length is None:
            raise ValueError("positions='learned' needs max_length, the number of rows of its table")
        for name, config in self.mixers.items():
            able = registry.abilities(config)
            if not able.causal:
                why = config.why_not_causal or f"its mode is {getattr(config, 'mode', 'not causal')}"
                raise UnsupportedUse(f"{config.kind} (mixer {name!r}) cannot be a layer of a language model, which must be "
                                     f"causal: {why}; choose mode='causal' where the kind has it, or another kind")
        return self

    @property
    def table_rows(self) -> int:
        """Rows of the embedding: the vocabulary rounded up."""
        return -(-self.vocabulary // self.vocabulary_multiple) * self.vocabulary_multiple

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return len(self.plan)
