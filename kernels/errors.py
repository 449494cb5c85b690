"""The one exception family: every error a user can cause derives from `RereadError`.

A message says what was given, what was expected and what to do next. The command line prints it without a
traceback and exits with 2 (a mistake in what was asked) unless the class says the work itself failed.
"""


class RereadError(Exception):
    """Base of all errors that name their remedy."""

    exit_code = 2


class LayoutError(RereadError):
    """A batch layout that contradicts itself or the tensors it came with."""


class StateError(RereadError):
    """A recurrent state used twice, with another batch, or with another mixer."""


class LengthError(RereadError):
    """A position beyond what a mixer can represent."""


class UnsupportedUse(RereadError):
    """A mixer or backend asked for something it declares it cannot do."""


class ConfigError(RereadError):
    """A configuration that cannot be built."""
