"""Registries: built-in names first, then entry points of other packages."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint

import pytest

from wattree.errors import UnknownNameError, WattreeError
from wattree.registry import Registry


@pytest.fixture
def colors() -> Registry[int]:
    """Return a registry with two entries."""
    colors: Registry[int] = Registry(kind="color", group="wattree.colors")
    colors.register("red")(1)
    colors.register("blue")(2)
    return colors


def test_a_registered_entry_is_found_by_its_name(colors: Registry[int]) -> None:
    """The purpose of a registry."""
    assert colors["red"] == 1


def test_registering_hands_the_entry_back() -> None:
    """`register` is a decorator: the name it decorates must stay bound to the entry."""
    shapes: Registry[type] = Registry(kind="shape", group="wattree.shapes")

    @shapes.register("round")
    class Round:
        """A shape."""

    assert shapes["round"] is Round


def test_a_name_is_taken_once(colors: Registry[int]) -> None:
    """Silent replacement would make the result depend on the order of imports."""
    with pytest.raises(WattreeError, match=r"^color 'red' is registered twice$"):
        colors.register("red")(3)

    assert colors["red"] == 1


def test_an_unknown_name_is_refused_with_the_nearest_one(colors: Registry[int]) -> None:
    """The user reads what there is."""
    with pytest.raises(UnknownNameError) as caught:
        colors["bleu"]

    assert str(caught.value) == "unknown color 'bleu'; did you mean 'blue'? known: blue, red"


def test_names_come_in_alphabetical_order(colors: Registry[int]) -> None:
    """Lists and enumerations must not depend on the order of imports."""
    assert list(colors) == ["blue", "red"]


def test_membership_knows_registered_names_only(colors: Registry[int]) -> None:
    """Any object may be asked for; only names can be in."""
    assert "red" in colors
    assert "green" not in colors
    assert 1 not in colors


@pytest.fixture
def _extension(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that another package offers `green`, and its own `red`."""

    def entry_points(*, group: str) -> list[EntryPoint]:
        return [
            EntryPoint(name=name, value="math:pi", group=group)
            for name in ("green", "red")
            if group == "wattree.colors"
        ]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


@pytest.mark.usefixtures("_extension")
def test_other_packages_add_entries(colors: Registry[float]) -> None:
    """Extensions need no change here."""
    assert colors["green"] == pytest.approx(3.14159, abs=1e-5)


@pytest.mark.usefixtures("_extension")
def test_a_built_in_entry_cannot_be_replaced_from_outside(colors: Registry[float]) -> None:
    """Installing a package must not change what a known name means."""
    assert colors["green"] > 3  # loads the entry points

    assert colors["red"] == 1
