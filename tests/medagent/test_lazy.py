"""Names that are imported when they are first used."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from medagent.lazy import lazy


def test_a_name_is_imported_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("lazy_package")
    monkeypatch.setitem(sys.modules, "lazy_package", package)
    get, listed = lazy("lazy_package", {"Fraction": "fractions"})
    vars(package).update(__getattr__=get, __dir__=listed)
    assert "Fraction" in dir(package)
    assert package.Fraction(1, 2) == 0.5
    with pytest.raises(AttributeError, match=r"lazy_package.*no attribute 'Friction'"):
        _ = package.Friction
