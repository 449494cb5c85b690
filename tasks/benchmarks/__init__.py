"""What the bench stage measures.

    operation.py    an operation, its implementations, and the truth each is held against
    operations/     one file per operation, discovered by itself: ours in every backend, torch's attention, peers
    presets.py      which measurements belong together, and for how long
    sweep.py        operations against length and batch; decode.py against context
    whole_models.py, growth.py, efficiency.py    the same for models and mixers
    refusals.py     why a row has no time, and that no failing call takes another row with it
    machine.py      the device that the figures belong to
    published.py    figures of the papers beside ours, with the conditions that differ
    figures.py, page.py, notes.py    what a person looks at, and what must be known of it
"""
