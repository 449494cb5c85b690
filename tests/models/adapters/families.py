"""Tiny random models of transformers, built from their configs."""

import torch

VOCABULARY = 97
LENGTH = 64      # tokens that the models with a limit can place


def gpt2(**changes):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**{"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2,
                                         "n_head": 2, "initializer_range": 0.2} | NO_ENDS | changes))


def llama(**changes):
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**ATTENTION | changes))


def mistral(**changes):
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**ATTENTION | {"sliding_window": 4} | changes))


def mamba(**changes):
    from transformers import MambaConfig, MambaForCausalLM

    return noisy(MambaForCausalLM(MambaConfig(**{"vocab_size": VOCABULARY, "hidden_size": 32, "state_size": 4,
                                                 "num_hidden_layers": 2} | NO_ENDS | changes)))


def mamba2(**changes):
    from transformers import Mamba2Config, Mamba2ForCausalLM

    return noisy(Mamba2ForCausalLM(Mamba2Config(**{
        "vocab_size": VOCABULARY, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "num_heads": 8,
        "head_dim": 8, "n_groups": 1, "chunk_size": 8} | NO_ENDS | changes)))


def jamba(**changes):
    """Mamba and attention in turn."""
    from transformers import JambaConfig, JambaForCausalLM

    return noisy(JambaForCausalLM(JambaConfig(**ATTENTION | {
        "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "use_mamba_kernels": False} | changes)))


def rwkv(**changes):
    from transformers import RwkvConfig, RwkvForCausalLM

    return noisy(RwkvForCausalLM(RwkvConfig(**{"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
                                            | NO_ENDS | changes)))


def recurrent_gemma(**changes):
    """Keeps its memory inside the module."""
    from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

    return RecurrentGemmaForCausalLM(RecurrentGemmaConfig(**{
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
        "num_attention_heads": 4, "lru_width": 32, "attention_window_size": 16} | NO_ENDS | changes))


NO_ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
ATTENTION = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LENGTH,
             "initializer_range": 0.2} | NO_ENDS
FAMILIES = {"gpt2": gpt2, "llama": llama, "mistral": mistral, "mamba": mamba, "mamba2": mamba2, "jamba": jamba,
            "rwkv": rwkv, "recurrent_gemma": recurrent_gemma}


def noisy(model):
    """Every weight moved a little, biases too: a fault that zeros would hide shows."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def build(name: str, **changes):
    """The model of a family, always the same one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return FAMILIES[name](**changes).eval()
