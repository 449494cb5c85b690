"""The nightly evaluation: when a night is due, what it has to do, what it decides, and what it leaves behind.

    clock.py    the schedule: last and next due times
    due.py      registered versions, the scores that the suite gives them, and which are missing
    night.py    one night: evaluate what is missing, decide, write, report
    decide.py   paired comparisons: the alias of the best, regressions
    outcome.py  what came of a version, as data
    ledger.py   nights as runs in MLflow
    page.py     the report of a night
"""
