"""The solver: the closest admissible size, within 2 % or refused with the two closest."""

import pytest

from kernels.errors import ConfigError
from models import ModelConfig
from models.sizing import Sketch, match


def attention(width: int, heads: int = 4, plan: str = "a*2", **settings) -> ModelConfig:
    return ModelConfig(width=width, vocabulary=256, plan=[plan], mixers={"a": {"kind": "attention", "heads": heads}}, **settings)


def exact(width: int) -> int:
    """256 rows, two layers of four matrices and a norm, the last norm."""
    return 256 * width + 2 * (4 * width * width + width) + width


@pytest.mark.parametrize("target", [2_000, 40_000, 394_000, 5_000_000, 30_000_000])
def test_the_closest_of_all_multiples(target):
    found = match(attention, target, step=4, tolerance=None)
    best = min(range(4, 4096, 4), key=lambda width: abs(exact(width) - target))
    assert found.size == found.config.width == best and found.figure == exact(best) == Sketch(found.config).parameters


def test_state_bytes_at_a_length():
    """Two layers, k and v, 4 bytes a number, 8 for the count."""
    for length in (256, 2048):
        found = match(attention, 2 * (2 * length * 48 * 4 + 8), of="state_bytes", length=length, step=4)
        assert found.size == 48 and found.figure == Sketch(found.config).cost(length).state_bytes


def test_any_integer_can_be_solved_for():
    found = match(lambda layers: attention(64, plan=f"a*{layers}"), 256 * 64 + 9 * (4 * 64 * 64 + 64) + 64)
    assert found.size == found.config.layers == 9


def test_sizes_that_the_model_refuses_are_passed_over():
    """Heads of 24: multiples of 4 that 24 does not divide are refused by the mixer itself."""
    found = match(lambda width: attention(width, heads=24), 394_000, step=4, tolerance=None)
    assert found.size % 24 == 0
    assert found.size == min(range(24, 4096, 24), key=lambda width: abs(exact(width) - 394_000))


def test_nothing_within_two_percent_names_the_two_closest():
    with pytest.raises(ConfigError, match=r"parameters: no size comes within 2% of 3,000,000: size 512 gives 2,229,\d+ and "
                                          r"size 1024 gives 8,653,\d+") as caught:
        match(attention, 3_000_000, step=512)
    assert "change the target" in str(caught.value)
    assert match(attention, 3_000_000, step=512, tolerance=0.3).size == 512


def test_the_tolerance_is_two_percent():
    """What width 512 has is 1.9 %, then 2.1 % above the target; the steps are too coarse for anything else."""
    assert match(attention, round(exact(512) / 1.019), step=512).size == 512
    with pytest.raises(ConfigError, match="within 2%"):
        match(attention, round(exact(512) / 1.021), step=512)


def test_no_size_at_all_says_why():
    def build(width: int) -> ModelConfig:
        raise ConfigError(f"width {width} is not for this")

    with pytest.raises(ConfigError, match=r"no size fits, the first was refused because width 128 is not for this"):
        match(build, 1000)


def test_an_error_of_another_kind_is_not_taken_for_a_refusal():
    with pytest.raises(ZeroDivisionError):
        match(lambda width: attention(width // 0), 1000)


@pytest.mark.parametrize("off", [-3000, 100, 1000, 3500])
def test_a_dip_on_the_way_does_not_trap_the_search(off):
    """Odd widths carry a larger table: the figure zigzags, and the closest may lie beyond a worse neighbour."""
    def build(width: int) -> ModelConfig:
        config = attention(width, heads=1)
        return config if width % 2 == 0 else config.model_copy(update={"vocabulary": 288})

    target = exact(122) + off
    assert match(build, target).size == min(range(100, 140), key=lambda width: abs(Sketch(build(width)).parameters - target))


def test_a_figure_that_does_not_depend_on_the_size_ends():
    with pytest.raises(ConfigError, match="within 2%"):
        match(lambda size: attention(64), 1_000_000)


@pytest.mark.parametrize("target", [10**13, -5])
def test_a_target_beyond_every_size_ends(target):
    with pytest.raises(ConfigError, match=f"parameters: .*{target:,}"):
        match(attention, target, step=4096)
