"""Architectures: configuration, language model, generation. torch and pydantic only."""
