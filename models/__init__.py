"""Architectures: configuration, mixers, language model, generation, checkpoints. torch and pydantic only."""

from kernels.layout import Layout
from models.checkpoint import load_config, load_model, save_model
from models.config import ModelConfig
from models.generate import greedy
from models.language_model import LanguageModel, build
from models.mixer import Abilities, Cost, Mixer, MixerConfig
from models.presets import preset, preset_names
from models.state import ModelState, State

__all__ = ["Abilities", "Cost", "LanguageModel", "Layout", "Mixer", "MixerConfig", "ModelConfig", "ModelState", "State",
           "build", "greedy", "load_config", "load_model", "preset", "preset_names", "save_model"]
