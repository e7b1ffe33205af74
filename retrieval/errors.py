"""Errors of retrieval: each says what was found, what was wanted, and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager


class RetrievalError(Exception):
    """Base of all retrieval errors. `query` is the one that failed, where it is known."""

    query: str | None = None


class CorpusError(RetrievalError):
    """A corpus cannot be read."""


class EmptyCorpusError(CorpusError):
    """A corpus was read and holds no passage."""


class IndexMismatchError(RetrievalError):
    """An index was built by other settings than those asked for."""


class RetrieverUnavailableError(RetrievalError):
    """Search does not answer; training must stop rather than train on empty results."""


class NoIndexError(RetrievalError):
    """An agent searches, and no index was given."""


class IndexBusyError(RetrievalError):
    """An index is open elsewhere, or being written."""


class IndexUnwritableError(RetrievalError):
    """An index's folder cannot be written, and so cannot be locked."""


class ToolError(RetrievalError):
    """A tool cannot be made, cannot be told from another, or did not return a text."""


@contextmanager
def needs_package(what: str, package: str, extra: str, error: type[RetrievalError] = RetrievalError) -> Iterator[None]:
    """Say which extra installs a package whose import fails."""
    try:
        yield
    except ImportError as cause:
        raise error(f"{what} needs the package {package}. Install it with: pip install 'medagent[{extra}]'") from cause


@contextmanager
def needs_model(what: str, model: str, wanted: str) -> Iterator[None]:
    """Say what to give for a model that cannot be loaded."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0][:200]
        raise RetrievalError(f"the {what} {model!r} cannot be loaded ({reason}). Give {wanted}.") from error
