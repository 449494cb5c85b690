"""Layout beyond the contract's laws: its caches, indices, masks, rotary angles and what its refusals say."""

import pickle

import pytest
import torch

from kernels.errors import LayoutError
from kernels.layout import Layout

MASK = torch.tensor([[0, 1, 1, 0, 1, 0], [1, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]], dtype=torch.bool)


def layouts() -> dict[str, Layout]:
    return {
        "dense": Layout.dense(2, 4), "right": Layout.right_padded([3, 0, 4], 5), "left": Layout.left_padded([3, 0, 4], 5),
        "packed": Layout.packed([[2, 0, 3], [6]], 7), "mask": Layout.from_mask(MASK),
        "packed mask": Layout.from_mask(MASK, [[1, 2], [2, 1, 2], []]),
    }


every = pytest.mark.parametrize("layout", layouts().values(), ids=layouts().keys())


def test_host_facts():
    facts = {name: (made.aligned, made.padded, made.packed, made.plain, made.longest)
             for name, made in layouts().items()}
    assert facts == {
        "dense": (True, False, False, True, 4), "right": (True, True, False, True, 4),
        "left": (False, True, False, False, 4), "packed": (True, True, True, False, 6),
        "mask": (False, True, False, False, 5), "packed mask": (False, True, True, False, 2)}
    assert Layout.left_padded([4, 4], 4).aligned and Layout.from_mask(torch.ones(2, 3, dtype=torch.bool)).aligned
    assert not Layout.packed([[3], [2]], 4).packed
    assert Layout.right_padded([3, 5]).shape == (2, 5) and Layout.packed([[3, 1], [5]]).shape == (2, 5)


def test_packed_numbers_documents_in_order_and_counts_empty_ones():
    made = layouts()["packed"].with_prefix([[1, 9, 9], [2]])
    assert made.segment_BL.tolist() == [[0, 0, 2, 2, 2, -1, -1], [0] * 6 + [-1]]
    assert made.position_BL.tolist() == [[0, 1, 0, 1, 2, 0, 0], [0, 1, 2, 3, 4, 5, 0]]
    assert made.prefix_BL.tolist() == [[1, 1, 3, 3, 3, 0, 0], [2] * 6 + [0]]
    assert made.start_BL.int().tolist() == [[1, 0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0]]
    assert made.documents == ((0, 2, 1), (0, 0, 0), (0, 3, 3), (1, 6, 2))


@every
def test_there_and_back_again(layout):
    x_BL = torch.arange(1, 1 + layout.shape[0] * layout.shape[1]).reshape(layout.shape)
    index_BL, aligned = layout.align()
    moved = x_BL.gather(1, index_BL)
    assert torch.equal(moved.gather(1, layout.restore_BL), x_BL)
    for row, n in enumerate(layout.lengths):
        assert moved[row, :n].tolist() == x_BL[row][layout.real_BL[row]].tolist()
    index_NL, single = layout.unpack()
    back = x_BL.flatten()[index_NL].flatten()[layout.repack_BL]
    assert torch.equal(back[layout.real_BL], x_BL[layout.real_BL])
    assert single.shape == (len(layout.documents), layout.longest) and layout.align()[1] is aligned


@every
def test_the_tensor_constructor_rebuilds_it_and_pickle_too(layout):
    layout = layout.with_prefix(2)
    again = Layout(layout.segment_BL, layout.position_BL, layout.prefix_BL)
    assert (again.lengths, again.aligned, again.packed, again.longest) == (
        layout.lengths, layout.aligned, layout.packed, layout.longest)
    for other in (again, pickle.loads(pickle.dumps(layout))):
        for field in ("segment_BL", "position_BL", "prefix_BL", "real_BL"):
            assert torch.equal(getattr(other, field), getattr(layout, field))


@pytest.mark.parametrize("field, change, text", [
    ("position_BL", [[0, 2, 0, 0]], "Positions count"), ("position_BL", [[0, 1, 0, 5]], "Pads take no position"),
    ("segment_BL", [[1, 0, 0, -1]], "in order"), ("prefix_BL", [[2, 1, 0, 0]], "inside document 0"),
    ("prefix_BL", [[3, 3, 0, 0]], "at most the document's 2"), ("prefix_BL", [[1, 1, 0]], "three times"),
])
def test_the_tensor_constructor_refuses_contradictions(field, change, text):
    fields = {"segment_BL": [[0, 0, 1, -1]], "position_BL": [[0, 1, 0, 0]], "prefix_BL": [[1, 1, 0, 0]]}
    Layout(**{name: torch.tensor(value, dtype=torch.int32) for name, value in fields.items()})
    with pytest.raises(LayoutError, match=text):
        Layout(**{name: torch.tensor(value, dtype=torch.int32) for name, value in (fields | {field: change}).items()})


@pytest.mark.parametrize("make", [Layout.right_padded, Layout.left_padded,
                                  lambda n, L: Layout.from_mask(MASK[:2])])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_tail_index_finds_the_last_inputs(make, k):
    layout = make([3, 5], 6)
    cached = torch.arange(-k, 0).expand(2, k)               # earlier tokens -k .. -1, then 0, 1, ...
    whole = torch.cat([cached, torch.where(layout.real_BL, layout.position_BL, 99)], dim=1)
    tail = whole.gather(1, layout.tail_index(k))
    assert tail.tolist() == [list(range(n - k, n)) for n in (3, 5)]


def test_cut_keeps_the_shape_and_the_first_tokens():
    made = Layout.from_mask(MASK).cut([2, 0, 0])
    assert made.real_BL.int().tolist() == [[0, 1, 1, 0, 0, 0], [0] * 6, [0] * 6] and made.shape == (3, 6)
    assert Layout.packed([[2, 3]], 6).with_prefix([[1, 2]]).cut([4]).documents == ((0, 2, 1), (0, 2, 2))
    with pytest.raises(LayoutError, match="at least the prefix, 2"):
        Layout.packed([[2, 3]], 6).with_prefix([[1, 2]]).cut([3])
    with pytest.raises(LayoutError, match="only be shortened"):
        Layout.dense(1, 3).cut(4)


def test_prefix_forms_and_keep_out():
    packed = Layout.packed([[2, 3], [4]], 5)
    forms = [packed.with_prefix([[1, 2], [3]]), packed.with_prefix((1, 2, 3)),
             packed.with_prefix(torch.tensor([1, 2, 3])),
             packed.with_prefix(torch.tensor([[1, 1, 2, 2, 2], [3, 3, 3, 3, 0]]))]
    assert {made.documents for made in forms} == {((0, 2, 1), (0, 3, 2), (1, 4, 3))}
    assert packed.with_prefix([1, 2]).documents == ((0, 2, 1), (0, 3, 1), (1, 4, 2))
    assert packed.with_prefix(9, keep_out=2).documents == ((0, 2, 0), (0, 3, 1), (1, 4, 2))
    assert packed.with_prefix(2).with_prefix(0).prefixed is False


def test_after_counts_on_and_closes_prefixes():
    made = Layout.left_padded([2, 1], 3).with_prefix(1).after(torch.tensor([0, 7])).after(torch.tensor([0, 2]))
    assert made.position_BL.tolist() == [[0, 0, 1], [0, 0, 9]] and made.position_BL.dtype == torch.int32
    assert made.prefix_BL.tolist() == [[0, 1, 1], [0, 0, 0]] and made.prefix_B.tolist() == [1, 0]
    assert not made.plain and made.align()[1].position_BL.tolist() == [[0, 1, 0], [9, 0, 0]]


def test_rope_is_float64_inside_and_one_row_where_rows_agree():
    far = Layout.dense(1, 1).after(torch.tensor([131_071]))
    cos, sin = far.rope(8, 10_000.0, torch.float32)
    angle = 131_071 * 10_000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    assert torch.equal(cos[0, 0], angle.cos().float()) and torch.equal(sin[0, 0], angle.sin().float())
    plain, packed = Layout.right_padded([3, 5], 6), Layout.packed([[3, 2], [5]], 6)
    assert plain.rope(8, 10_000.0, torch.float32)[0].shape == (1, 6, 4)
    assert plain.rope(8, 10_000.0, torch.float32)[0] is plain.rope(8, 10_000.0, torch.float32)[0]
    assert torch.equal(packed.rope(8, 10_000.0, torch.float32)[0][0, 3:5], plain.rope(8, 10_000.0, torch.float32)[0][0, :2])


@pytest.mark.parametrize("window", [None, 1, 2])
@pytest.mark.parametrize("prefix", [False, True])
def test_visible_keys_by_the_definition(window, prefix):
    for made in (Layout.packed([[3, 2], [5]], 6), Layout.right_padded([5, 0, 6], 6)):
        made = made.with_prefix(2)
        got = made.visible_BLL(window, prefix)
        got = got.expand(made.shape[0], *got.shape[1:])
        for b in range(made.shape[0]):
            for i in range(6):
                for j in range(6):
                    if not made.real_BL[b, i]:
                        continue
                    same = made.segment_BL[b, i] == made.segment_BL[b, j]
                    back = made.position_BL[b, i] - made.position_BL[b, j]
                    see = same and 0 <= back < (window or 99)
                    assert bool(got[b, i, j]) == bool(see or (same and prefix and made.in_prefix_BL[b, j])), (b, i, j)


def test_a_device_is_only_written_never_read():
    """On meta a read-back would raise: host facts answer everything a model asks on the host."""
    made = Layout.left_padded([2, 3], 4).with_prefix(1).to("meta")
    assert made.real_BL.is_meta and made.align()[0].is_meta and made.rope(4, 1e4, torch.float32)[0].is_meta
    assert made.align()[1].visible_BLL(2, prefix=True).is_meta and made.tail_index(2).is_meta
    assert made.lengths == (2, 3) and made.to("meta") is made
    for bad in (lambda: Layout.right_padded(torch.ones(2, dtype=torch.int64, device="meta"), 4),
                lambda: Layout.from_mask(MASK.to("meta")), lambda: Layout.dense(2, 3).with_prefix(
                    torch.ones(2, dtype=torch.int64, device="meta"))):
        with pytest.raises(LayoutError, match="meta"):
            bad()


def test_muted_slots_only_where_every_slot_is_real():
    muted = torch.tensor([[True, True, False], [True, False, False]])
    made = Layout.dense(2, 3).with_prefix(3).with_muted(muted)
    assert torch.equal(made.muted_BL, muted) and torch.equal(made.with_prefix(2).muted_BL, muted)
    for bad in (lambda: Layout.right_padded([2, 3], 3).with_muted(muted), lambda: made.with_prefix(0).cut([2, 3]),
                lambda: Layout.packed([[1, 2], [3]], 3).with_muted(muted), lambda: made.with_muted(muted[:1])):
        with pytest.raises(LayoutError, match="muted"):
            bad()


@pytest.mark.parametrize("make, parts", [
    (lambda: Layout.right_padded([2, -3], 4), ["lengths, row 1", "got -3", "expected 0 or more"]),
    (lambda: Layout.left_padded([2, 9], 4), ["row 1", "9 tokens", "at most L = 4"]),
    (lambda: Layout.from_mask(MASK, [[3], [4], [0]]), ["packed lengths, row 1", "a sum of 4", "5 real slots"]),
    (lambda: Layout.from_mask(MASK.int()), ["mask", "torch.int32", "bool"]),
    (lambda: Layout.right_padded([2.5], 4), ["2.5", "an integer"]),
    (lambda: Layout.dense(1, 3).with_prefix([1, 2, 3, 4]), ["prefix", "4 values"]),
    (lambda: Layout.dense(-1, 3), ["B", "-1"]),
])
def test_refusals_name_field_row_got_expected(make, parts):
    with pytest.raises(LayoutError) as refusal:
        make()
    for part in parts:
        assert part in str(refusal.value)


def test_frozen():
    with pytest.raises(AttributeError, match="frozen"):
        Layout.dense(1, 2).packed = True
