"""Errors of data, artifacts, tracking and services; the base class is shared with the kernels."""

from kernels.errors import ConfigError, LayoutError, LengthError, RereadError, StateError, UnsupportedUse

__all__ = [
    "ArtifactError", "ConfigError", "CorpusError", "LayoutError", "LengthError", "NightFailed", "RereadError",
    "ServiceError", "ShardError", "SpecError", "StageFailed", "StateError", "StudyFailed", "TokenizerError",
    "TrackingError", "UnsupportedUse",
]


class SpecError(RereadError):
    """A specification (YAML, command line, form) that names an unknown field or holds an impossible value."""


class CorpusError(RereadError):
    """A corpus that cannot be read: names the file and the record."""


class TokenizerError(RereadError):
    """A tokenizer that is missing, damaged, or not the one expected."""


class ArtifactError(RereadError):
    """An artifact that is missing, incomplete or does not match its manifest."""


class ShardError(ArtifactError):
    """A shard whose bytes differ from its recorded checksum, or whose schema is not ours."""


class StageFailed(RereadError):
    """The work of a stage failed (as opposed to a mistake in what was asked)."""

    exit_code = 1


class StudyFailed(StageFailed):
    """A study ran to its end but what it measured does not satisfy its own expectations."""


class NightFailed(StageFailed):
    """A night ran to its end, and was asked to count what it found as a failure."""


class TrackingError(RereadError):
    """The tracking store refused something that cannot be spooled."""

    exit_code = 1


class TrackingAway(TrackingError):
    """The tracking store does not answer, whatever it is asked."""


class ServiceError(RereadError):
    """A local service (Prefect, MLflow, Ray) did not start, died or does not answer."""

    exit_code = 1
