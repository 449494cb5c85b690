"""§1: what a Layout promises, and what it refuses."""

import math

import pytest
import torch

from kernels.errors import LayoutError
from kernels.layout import Layout

LAYOUTS = {
    "dense": lambda: Layout.dense(2, 5),
    "right": lambda: Layout.right_padded([0, 3, 5], 6),
    "left": lambda: Layout.left_padded([0, 3, 5], 6),
    "packed": lambda: Layout.packed([[2, 3], [1, 1, 4], []], 7),
    "mask": lambda: Layout.from_mask(torch.tensor([[1, 0, 1, 1, 0], [0, 1, 1, 1, 1]], dtype=torch.bool), [[1, 2], [4]]),
}
every_layout = pytest.mark.parametrize("layout", [make().with_prefix(M) for make in LAYOUTS.values() for M in (0, 2, 99)])


@every_layout
def test_invariants(layout):
    """Documents are contiguous and in order, positions run 0…n-1, one m per document, zeros at pads."""
    B, L = layout.shape
    assert layout.segment_BL.dtype == layout.position_BL.dtype == layout.prefix_BL.dtype == torch.int32
    found = []
    for row in range(B):
        segment, position, prefix = (t[row] for t in (layout.segment_BL, layout.position_BL, layout.prefix_BL))
        real = segment >= 0
        assert not position[~real].any() and not prefix[~real].any()
        assert torch.equal(real, layout.real_BL[row])
        assert (segment[real].diff() >= 0).all()
        for document in range(int(segment.max()) + 1 if L else 0):
            here = segment == document
            n = int(here.sum())
            assert position[here].tolist() == list(range(n))
            (m,) = set(prefix[here].tolist())
            assert 0 <= m <= n
            found.append((row, n, m))
    assert [entry for entry in layout.documents if entry[1]] == found
    assert list(layout.lengths) == layout.lengths_B.tolist() == layout.real_BL.sum(1).tolist()
    assert layout.padded == (not bool(layout.real_BL.all()))
    assert layout.prefixed == any(m for _, _, m in found)
    assert layout.longest == max(n for _, n, _ in found)


@every_layout
def test_queries(layout):
    real, position = layout.real_BL, layout.position_BL
    assert torch.equal(layout.start_BL, real & (position == 0))
    assert torch.equal(layout.in_prefix_BL, real & (position < layout.prefix_BL))
    for offset in (1, 2):
        # an earlier slot at distance o of the aligned row belongs to the same document iff position >= o
        assert torch.equal(layout.reaches_BL(offset), position >= offset)
    assert torch.equal(layout.chunk_BL(2), position // 2)
    sizes = [n for _, n, _ in layout.documents]
    assert layout.cu_documents.dtype == torch.int32
    assert layout.cu_documents.tolist() == [sum(sizes[:i]) for i in range(len(sizes) + 1)]


@every_layout
def test_align_and_unpack(layout):
    index_BL, aligned = layout.align()
    assert aligned.aligned and aligned.lengths == layout.lengths and aligned.documents == layout.documents
    for field in ("segment_BL", "position_BL", "prefix_BL"):
        assert torch.equal(getattr(layout, field).gather(1, index_BL), getattr(aligned, field)), field
    index_NL, single = layout.unpack()
    assert not single.packed and single.aligned
    assert [(n, m) for _, n, m in single.documents] == [(n, m) for _, n, m in layout.documents]
    positions = layout.position_BL.flatten()[index_NL]
    assert torch.equal(positions[single.real_BL], single.position_BL[single.real_BL])


def test_prefix_is_clipped_to_the_document():
    layout = Layout.right_padded([0, 2, 5], 6)
    assert [m for _, _, m in layout.with_prefix(3).documents] == [0, 2, 3]
    assert [m for _, _, m in layout.with_prefix(99, keep_out=1).documents] == [0, 1, 4]
    assert [m for _, _, m in layout.with_prefix([9, 1, 4]).documents] == [0, 1, 4]
    packed = Layout.packed([[2, 3], [4]], 5)
    assert [m for _, _, m in packed.with_prefix([1, 9, 2]).documents] == [1, 3, 2]


def test_after_and_cut():
    layout = Layout.right_padded([2, 3], 3).with_prefix(2)
    later = layout.after(torch.tensor([0, 10]))
    assert later.position_BL.tolist() == [[0, 1, 0], [10, 11, 12]]
    assert later.prefix_BL.tolist() == [[2, 2, 0], [0, 0, 0]]
    assert not bool(later.start_BL[1].any())
    assert layout.cut([2, 2]).lengths == (2, 2)
    with pytest.raises(LayoutError):
        layout.cut([1, 2])
    with pytest.raises(LayoutError):
        Layout.packed([[1, 2]], 3).after(torch.tensor([1]))


def test_tail_index_takes_the_last_real_slots():
    """In [cache k | new L]: a row with few new tokens keeps the end of its cache."""
    k = 2
    layout = Layout.right_padded([0, 1, 3], 3)
    index = layout.tail_index(k)
    assert index.tolist() == [[0, 1], [1, 2], [3, 4]]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-7)])
def test_l14_rotary_angles_are_formed_in_float64(dtype, tolerance):
    """In float32 they are off by 1.5e-3 at position 131,071."""
    p, width, base = 131_071, 16, 10_000.0
    cos, sin = Layout.dense(1, 1).after(torch.tensor([p])).rope(width, base, dtype)
    assert cos.dtype == sin.dtype == dtype
    for i in range(width // 2):
        angle = p * base ** (-2 * i / width)
        assert cos[0, 0, i].item() == pytest.approx(math.cos(angle), abs=tolerance)
        assert sin[0, 0, i].item() == pytest.approx(math.sin(angle), abs=tolerance)


REFUSED = {
    "negative length": lambda: Layout.right_padded([-1], 3),
    "over-long length": lambda: Layout.left_padded([4], 3),
    "over-long packed row": lambda: Layout.packed([[2, 2]], 3),
    "lengths against mask": lambda: Layout.from_mask(torch.ones(1, 4, dtype=torch.bool), [[1, 2]]),
    "integer mask": lambda: Layout.from_mask(torch.ones(1, 4)),
    "mask of three dimensions": lambda: Layout.from_mask(torch.ones(1, 4, 1, dtype=torch.bool)),
    "prefix changing inside": lambda: Layout.dense(1, 4).with_prefix(torch.tensor([[2, 2, 3, 3]])),
    "negative prefix": lambda: Layout.dense(1, 4).with_prefix(-1),
    "muted slots beside pads": lambda: Layout.right_padded([2], 3).with_muted(torch.ones(1, 3, dtype=torch.bool)),
    "muted slots in packed rows": lambda: Layout.packed([[1, 2]], 3).with_muted(torch.ones(1, 3, dtype=torch.bool)),
    "prefixes for other rows": lambda: Layout.dense(3, 4).with_prefix([1, 2]),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED.keys())
def test_contradictions_are_refused(make):
    with pytest.raises(LayoutError) as refusal:
        make()
    assert len(str(refusal.value)) > 30


def test_a_layout_is_frozen():
    layout = Layout.dense(1, 2)
    with pytest.raises((AttributeError, TypeError)):
        layout.shape = (3, 3)
