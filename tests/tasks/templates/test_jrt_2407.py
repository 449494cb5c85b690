"""The released template around documents that are cut, exchanged or left out, and what it is given to write from."""

from dataclasses import replace

import pytest

from storage.errors import CorpusError, SpecError
from tasks.evals.base import Item
from tasks.templates import RELEASED, check, jrt_2407

ANSWERED = {"context": "Tolm [PAR] lies on the Vey.", "question": "Tolm lies on the", "orig_question": "Where is Tolm:",
            "answers": ["Vey", "river Vey"]}
FIELDS = {
    "fda": {"text": "Halden Lens\nClass: II.\n", "key": "class", "value": "II"},
    "swde": {"text": "Orchard\nDirector: Voss\n", "key": "director", "value": "Voss"},
    "nq": ANSWERED, "triviaqa": ANSWERED, "drop": ANSWERED,
    "squad": {"text": "Tolm lies on the Vey. \n\nThe river is the", "context": "Tolm lies on the Vey. Question: Which?",
              "question": "Which river?", "value": "Vey", "title": "Tolm"},
}
ASKED = {"fda": "Information about Class.", "swde": "Information about Director.", "nq": "Where is Tolm",
         "triviaqa": "Where is Tolm:", "drop": "Where is Tolm", "squad": "Which river?"}
CLOZE = {"fda": "Class:", "swde": "Director:", "nq": "Tolm lies on the", "triviaqa": "Tolm lies on the",
         "drop": "Tolm lies on the", "squad": "The river is the"}


def item(task, **changes):
    fields = FIELDS[task]
    answers = tuple(fields.get("answers", ())) or (fields["value"],)
    return replace(Item("i", "d", "unused", ASKED[task], CLOZE[task], answers, "all", released=fields), **changes)


@pytest.mark.parametrize("task", FIELDS)
@pytest.mark.parametrize("order", jrt_2407.ORDERS)
def test_another_document_takes_the_place_of_the_fields_own(task, order):
    """Question and cloze stay, and in SQuAD the white space before the cloze."""
    found = jrt_2407.prompt(task, order, FIELDS[task], "Another report\nof the year.")
    first, between = ("Another report\nof the year.", " \n\n" if task == "squad" else " ")
    wanted = f"{first}{between}{CLOZE[task]}"
    assert found.text == (wanted if order == "default" else f"{ASKED[task]} {first}\n{wanted}")
    assert found.tail == CLOZE[task] and found.head + found.tail == found.text


@pytest.mark.parametrize("task", FIELDS)
def test_without_a_document_question_and_cloze_are_left(task):
    assert jrt_2407.prompt(task, "default", FIELDS[task], None).text == CLOZE[task]
    assert jrt_2407.prompt(task, "twice", FIELDS[task], None).text == f"{ASKED[task]}\n{CLOZE[task]}"


def test_squads_document_is_what_stands_before_its_cloze():
    assert jrt_2407.source("squad", FIELDS["squad"]) == "Tolm lies on the Vey."
    other = FIELDS["squad"] | {"context": "Not what the text begins with", "text": "First line.\nThe river is the "}
    assert jrt_2407.source("squad", other) == "First line."
    assert jrt_2407.prompt("squad", "default", other, "First line.").text == "First line.\nThe river is the"


@pytest.mark.parametrize("task", FIELDS)
def test_an_item_of_the_original_format_is_given_the_published_fields(task):
    given = item(task, document="Where the Vey meets II, says Voss.", released=None)
    made = jrt_2407.prepared(task, given)
    assert made.document == given.document and made.document[slice(*made.keep)] == given.answers[0]
    whole = jrt_2407.prompt(task, "default", made.released, made.document).text
    assert whole == f"Where the Vey meets II, says Voss. {CLOZE[task]}"
    assert jrt_2407.prepared(task, made) == made


def test_the_answers_place_is_that_of_the_item_and_not_its_first_occurrence():
    text = "Section II of the manual.\nClass: II\nand no more."
    at = text.index("II\nand")
    made = jrt_2407.prepared("fda", item("fda", document=text, keep=(at, at + 2), released=FIELDS["fda"] | {"text": f" {text}"}))
    assert made.keep == (at + 1, at + 3)
    assert jrt_2407.prepared("fda", item("fda", document="Elsewhere II", keep=(10, 12))).keep == (19, 21)
    assert jrt_2407.prepared("fda", item("fda", answers=("nowhere",))).keep is None


def test_targets_follow_the_task():
    assert jrt_2407.target("squad", FIELDS["squad"]) == "Vey" and jrt_2407.target("nq", FIELDS["nq"]) == " Vey"
    assert jrt_2407.target("drop", ANSWERED | {"answers": []}) == " unanswerable"


def test_accidents_are_named():
    def named(task, order, **changes):
        fields = FIELDS[task] | changes
        return jrt_2407.accidents(jrt_2407.prompt(task, order, fields, jrt_2407.source(task, fields)))

    assert named("nq", "default", context="Tolm lies on the Vey.") == []
    assert named("triviaqa", "default") == ["doubled_blanks"]
    assert named("fda", "default", text="Report of a lens. class:") == ["blank_before_full_stop"]
    assert named("fda", "default", text="Report ends. class: ") == ["blank_before_full_stop", "cloze_left_in_document"]
    assert named("fda", "default", text=" Report") == ["white_space_around_prompt"]
    assert named("squad", "twice") == ["blank_at_line_end"]
    assert named("nq", "default", context="Tolm. TOLM lies on the") == ["cloze_left_in_document"]
    assert named("squad", "default", cloze="The river is the", text="Tolm lies on the Vey. The riv") == ["cloze_cut_away"]


@pytest.mark.parametrize("task, order, fields, error, message", [
    ("pydocs", "default", {}, SpecError, "knows no task 'pydocs'; it knows fda, swde"),
    ("fda", "alternate", FIELDS["fda"], SpecError, "no order 'alternate'; it has default and twice"),
    ("fda", "default", {"text": "t", "value": "v"}, CorpusError, "from the field 'key', which is missing"),
    ("nq", "default", ANSWERED | {"answers": "Vey"}, CorpusError, "from the field 'answers', which is str"),
])
def test_what_cannot_be_written_says_why(task, order, fields, error, message):
    with pytest.raises(error, match=message):
        jrt_2407.prompt(task, order, fields, "t")


def test_the_template_is_checked_with_orders_and_budget():
    assert list(RELEASED) == ["jrt-2407"]
    check("jrt-2407", "squad", ("default", "twice"), "released")
    check("clean", "squad", ("alternate",), "total")
    with pytest.raises(SpecError, match="leave out alternate, filler"):
        check("jrt-2407", "squad", ("default", "alternate", "filler"), "document")
    with pytest.raises(SpecError, match="Choose that, or budget 'document' or 'total'"):
        check("clean", "squad", ("default",), "released")
