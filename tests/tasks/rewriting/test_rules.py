"""Questions by rule: every kind of question there is a rule for, with the statement that it must give."""

import random

import pytest

from tasks.datasets.records import Record, Unusable
from tasks.rewriting import rewriter_for
from tasks.rewriting.base import Rewriter
from tasks.rewriting.rules import Rules, rewritten
from tasks.rewriting.validation import why_not
from tasks.specs import RewriterSpec

# question | answer | text before the answer in the document | statement
OBJECTS = """
What did Ada sell? | lamps | | Ada sold
What did the old miller build in Veld? | a bridge | | What the old miller built in Veld was
What did Ada use the lamp for? | reading | | Ada used the lamp for
What does the council want to do? | leave | | What the council wants to do is
What did the work of the guild cause? | a riot | | The work of the guild caused
What do whales eat? | krill | | Whales eat
What does the tower not have? | a roof | | The tower does not have
What did the king plan and build? | a canal | | The king planned and built
What has Ada written? | a novel | | Ada has written
What can the council change? | the law | | The council can change
What was the village named after? | a saint | | The village was named after
What was Ada known as before the war? | the Fox | | Before the war, Ada was known as
What is the square called in Dutch? | Plein | | In Dutch, the square is called
What was Ada writing in Veld? | a novel | | What Ada was writing in Veld was
What did he refer to in the letter? | the storm | | In the letter, he referred to
What lake did they cross in May? | Lake Orm | | The lake that they crossed in May was
Which ships did the storm sink? | the Bold and the Aurora | | The ships that the storm sank were
Who did Ada marry? | Tom Reed | | Ada married
Who did Ada teach in Veld? | Tom Reed | | The person that Ada taught in Veld was
Whose lamp did Ada break? | Tom Reed | | The person whose lamp Ada broke was
"""
SUBJECTS = """
Who built the tower? | Tom Reed | | The person who built the tower was
Who quickly left the hall? | Tom Reed | | The person who quickly left the hall was
Who live in the tower? | monks | | The ones who live in the tower are
Who keeps the lamp? | the guild | | The one who keeps the lamp is
Who was elected in 1920? | Tom Reed | | The person who was elected in 1920 was
Who can close the gate? | the guards | | The ones who can close the gate are
Who was the first keeper? | Tom Reed | | The first keeper was
Whose ship sank? | Tom Reed | | The person whose ship sank was
What causes rust? | water | | What causes rust is
What happened in 1920? | the mine flooded | | What happened in 1920 was
What can cause rust? | water | | What can cause rust is
What was built in Veld? | a tower | | What was built in Veld was
What tribe conquered Veld? | the Orms | | The tribe that conquered Veld was
Which law states that nobody may fish? | Article 3 | | The law that states that nobody may fish is
What kind of glass does not break? | tempered | | The kind of glass that does not break is
Which ships were sunk by the storm? | the Bold and the Aurora | | The ships that were sunk by the storm were
What river originally bounded the park? | the Orm | | The river that originally bounded the park was
"""
COPULAS = """
What is the capital of Veld? | Orm | | The capital of Veld is
What's the capital of Veld? | Orm | | The capital of Veld is
What was the name of the ship built in 1890? | Aurora | | The name of the ship built in 1890 was
What color is the roof? | red | | The color of the roof is
What type of music is Vellen? | folk | | Vellen is a type of music described as
Which town is the capital of Orm? | Veld | | The town that is the capital of Orm is
What town is the museum located in? | Veld | | The museum is located in
What is it called when water freezes? | solidification | | When water freezes, it is called
"""
CIRCUMSTANCES = """
When did the war end? | 1920 | | The war ended in
When did the war end? | May 3, 1920 | | The war ended on
When did the war end? | May 1920 | | The war ended in
When did the war end? | 19th century | | The war ended in the
When did the war end? | the 1920s | | The war ended in
When did the war end? | in the spring | | The war ended
When did the war end? | noon | | The war ended at
When did the war end? | 1920 | It was over before | The war ended before
When was the treaty signed in Veld? | 1920 | | The treaty was signed in Veld in
When was the treaty signed in Veld ratified? | 1920 | | The treaty signed in Veld was ratified in
When was the battle of Veld? | 1920 | | The battle of Veld was in
When does the ship come back? | 3 May | | The ship comes back on
What year did Ada die? | 1920 | | Ada died in
On what day of the week was Ada born? | Monday | | Ada was born on
What day of the week is the market held? | Monday | | The market is held on
In what year was the tower built? | 1920 | | The tower was built in
By which year did the mine close? | 1920 | | The mine closed by
Where was Ada born? | Veld | | Ada was born in
Where was Ada born? | at sea | | Ada was born
Where does Ada live? | the coast | She lives on | Ada lives on
Where did Ada move in 1920? | Veld | | Ada moved in 1920 to
Where did Ada get the lamp? | Orm | | Ada got the lamp from
Where does the word come from? | Dutch | | The word comes from
Where did Ada study? | Orm College | | Ada studied at
Why did Ada leave? | she was ill | | Ada left because
Why did Ada leave? | the cold winter | | Ada left because of
Why did Ada leave? | to study law | | Ada left
Why isn't the tower open? | the stairs are broken | | The tower is not open because
How did Ada escape? | by boat | | Ada escaped
How did Ada escape? | using a rope | | Ada escaped
How did Ada escape? | climbing the wall | | Ada escaped by
How was the wall described? | very high | | The wall was described
How long did the war last? | six years | | The war lasted
How long did Ada live in Veld? | six years | | Ada lived in Veld for
How long has the tower been closed? | since 1920 | | The tower has been closed
How old was Ada when she died? | 81 | | The age of Ada when she died was
How tall is the tower? | 81 metres | | The height of the tower is
How fast do the ships sail? | 9 knots | | The speed at which the ships sail is
How far did Ada walk? | nine miles | | Ada walked
How often does the council meet? | once a year | | The council meets
How many lamps did Ada sell? | nine | | The number of lamps that Ada sold was
How many people live in Veld? | 900 | | The number of people that live in Veld is
How many ships are there in the harbour? | nine | | The number of ships in the harbour is
How many rooms are there? | nine | | The number of rooms is
How many yards was the longest throw? | 52 | | Measured in yards, the longest throw was
How much did the lamp cost? | nine crowns | | The lamp cost
How much water does the well hold? | nine litres | | The amount of water that the well holds is
Approximately how many lamps were sold? | 900 | | The number of lamps that were sold was
"""
ORDERS = """
To what group do whales belong? | mammals | | The group to which whales belong is
To whom did Ada write? | Tom | | Ada wrote to
In which country is Veld located? | Orland | | Veld is located in
In what way did the war change Veld? | by closing the mines | | The war changed Veld
Veld lies in what country? | Orland | | Veld lies in
Ada sold lamps to whom in 1920? | Tom | | In 1920, Ada sold lamps to
Ada sold how many lamps? | nine | | Ada sold
The council began to do what? | meet | | The council began to
A copy of which painting was sold in Veld? | Dawn | | The painting of which a copy was sold in Veld was
In Veld what did Ada build? | a tower | | In Veld, Ada built
In 1920, who ruled Veld? | Tom Reed | | In 1920, the person who ruled Veld was
After the war ended, what did Ada build? | a tower | | After the war ended, Ada built
When a lamp breaks, what does Ada do? | she mends it | | When a lamp breaks, what Ada does is
Name the river that crosses Veld. | the Orm | | The river that crosses Veld is
Name one river in Veld. | the Orm | | One river in Veld is
"""
WITHOUT_MARKS = """
who wrote the song of the lamp | Tom Reed | | The person who wrote the song of the lamp was
where did red lion come from | Veld | | Red lion came from
when was the last time the bold won the race | 1920 | | The last time the bold won the race was in
how many seasons of the lamp are there | nine | | The number of seasons of the lamp is
sweet bread baked for easter in veld | vellen | | Sweet bread baked for easter in veld is
the council of veld was led by | Tom Reed | | The council of veld was led by
name of the river in veld | the Orm | | The name of the river in veld is
"""
TABLES = {"objects": OBJECTS, "subjects": SUBJECTS, "copulas": COPULAS, "circumstances": CIRCUMSTANCES, "orders": ORDERS,
          "without marks": WITHOUT_MARKS}


def cases():
    for name, table in TABLES.items():
        for line in table.strip().split("\n"):
            yield pytest.param(*(part.strip() for part in line.split("|")), id=f"{name}: {line.split('|')[0].strip()}")


def record(question, answer, before="", behind=""):
    document = f"{before} {answer}{behind}".strip()
    start = len(before) + 1 if before else 0
    return Record("r", "d", document, question, (answer,), span=(start, start + len(answer)))


@pytest.mark.parametrize("question, answer, before, statement", cases())
def test_questions_become_statements_that_end_where_the_answer_starts(question, answer, before, statement):
    asked = record(question, answer, before)
    assert rewritten(asked) == ("statement", statement) and why_not(statement, asked) is None


def test_the_article_comes_from_the_document_when_it_means_the_answer():
    question = "Who ruled the island?"
    assert rewritten(record(question, "Duke of Orm", "ruled by the", ", who"))[1].endswith("was the")
    assert rewritten(record(question, "Duke of Orm", "ruled by the", " family"))[1].endswith("was")
    assert rewritten(record(question, "Duke of Orm", "ruled by", ", who"))[1].endswith("was")
    assert rewritten(record(question, "the Duke of Orm", "ruled by the", ", who"))[1].endswith("was")


def test_a_small_word_that_the_answer_says_again_is_left_out():
    assert rewritten(record("What is the lamp used for?", "for reading"))[1] == "The lamp is used"
    assert rewritten(record("In what year did Ada die?", "in 1920"))[1] == "Ada died"


@pytest.mark.parametrize("question, reason", [
    ("Is Veld larger than Orm?", "yes_no_question"), ("Did Ada or Tom leave first?", "yes_no_question"),
    ("  ?", "no_question"), ("", "no_question"),
])
def test_what_cannot_be_rewritten_says_why(question, reason):
    form, found = rewritten(record(question, "Orm"))
    assert form == "unusable" and isinstance(found, Unusable) and (found.where, found.reason) == ("r", reason)


def test_without_an_answer_there_is_no_cloze():
    empty = Record("r", "d", "text", "Who?", ())
    assert rewritten(empty)[1].reason == rewritten(Record("r", "d", "text", "Who?", ("  ",)))[1].reason == "no_answer"


def test_where_no_rule_holds_the_statement_is_about_the_question():
    form, cloze = rewritten(record('Blorp the "what"  did?', "Orm"))
    assert (form, cloze) == ("fallback", "The answer to the question \"Blorp the 'what' did?\" is")


def test_results_come_in_order_and_every_form_is_counted():
    rewriter: Rewriter = rewriter_for(RewriterSpec())
    asked = [record("Who built it?", "Tom Reed"), record("Is it old?", "yes"), record('Blorp the "what" did?', "Orm"),
             record("Where is it?", "Orm")]
    found = list(rewriter.clozes(asked))
    assert [isinstance(cloze, str) for cloze in found] == [True, False, True, True]
    assert found[0] == "The person who built it was" and found[3] == "It is in"
    assert isinstance(rewriter, Rules) and rewriter.bill == {"statement": 2, "fallback": 1, "unusable": 1}


def test_fragments_and_words_in_any_order_give_a_clean_cloze_or_a_reason():
    draw = random.Random(0)
    for table in TABLES.values():
        for line in table.strip().split("\n"):
            question, answer, *_ = (part.strip() for part in line.split("|"))
            words = question.split()
            fragments = [words[:k] for k in range(1, len(words))] + [words[k:] for k in range(1, len(words))]
            for some in [*fragments, draw.sample(words, len(words))]:
                form, cloze = rewritten(record(" ".join(some), answer))
                assert isinstance(cloze, Unusable) if form == "unusable" else cloze and cloze == " ".join(cloze.split())


def test_the_same_question_always_gives_the_same_cloze():
    asked = [record(*line.split("|")[:2]) for table in TABLES.values() for line in table.strip().split("\n")]
    assert list(Rules().clozes(asked)) == list(Rules().clozes(asked))
