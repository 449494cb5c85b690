"""Where documents come from: one module a source.

Each offers `resolve(spec) -> dict`, what the source is made of right now (versions, checksums, a revision), which is
what an artifact is named after, and `read(spec, tally) -> Iterator[(source, text)]`. The tally counts what was read under
names that begin with "read: ", and what was left out under its reason.
"""
