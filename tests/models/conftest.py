"""The toy mixer is found as any other: its folder is added to the search path, for the test alone."""

from pathlib import Path

import pytest

import models.mixers

EXTRA = str(Path(__file__).parent / "extra_mixers")


@pytest.fixture
def toy_kind():
    """The name of a registered toy mixer."""
    models.mixers.__path__.append(EXTRA)
    yield "toy_mixer"
    models.mixers.__path__.remove(EXTRA)
