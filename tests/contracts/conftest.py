"""The whole suite runs with deterministic algorithms and NaN in fresh memory (law L14), on one thread."""

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned_memory():
    deterministic, fill = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = fill
