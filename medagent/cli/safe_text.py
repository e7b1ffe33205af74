"""Text of models and documents for a terminal."""

from rich import markup


def escape(text: str) -> str:
    """Text that can neither mark up nor steer the terminal: rich's markup escaped, control characters dropped."""
    return markup.escape("".join(c for c in text if c.isprintable() or c in "\n\t"))
