"""The error tree: complete, drawn, and helpful to the person who meets it."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wattree
from wattree import errors
from wattree.errors import (
    InfeasibleError,
    JobError,
    MissingExtraError,
    StrategyError,
    UnknownNameError,
    WattreeError,
    nearest,
)

CLASSES = {
    name: found
    for name, found in vars(errors).items()
    if inspect.isclass(found) and issubclass(found, Exception)
}
DRAWN = re.findall(r"^ {4}(?:[├└]── )?(\w+)  ", errors.__doc__ or "", flags=re.MULTILINE)


def test_every_error_is_exported() -> None:
    """Callers catch errors by name, so each has to be public."""
    exported = {name for name in errors.__all__ if name[0].isupper()}

    assert exported == set(CLASSES)


def test_every_error_is_drawn_once_in_the_tree() -> None:
    """The drawing is what a reader learns the tree from; it must not lag behind."""
    assert sorted(DRAWN) == sorted(CLASSES)


@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"WattreeError"}))
def test_every_error_hangs_where_it_is_drawn(name: str) -> None:
    """The tree has one level: the command line catches its root and nothing else.

    What readers catch in passing may be an error of Python's too.
    """
    first, *others = CLASSES[name].__bases__

    assert first is WattreeError
    assert set(others) <= {ValueError}


@pytest.mark.slow
def test_no_other_module_defines_an_error_of_its_own() -> None:
    """One tree in one file; a second one would escape the exit code for user mistakes."""
    strays = [
        f"{module.__name__}.{name}"
        for module in _modules()
        for name, found in vars(module).items()
        if inspect.isclass(found)
        and issubclass(found, Exception)
        and found.__module__ == module.__name__ != errors.__name__
    ]

    assert strays == []


def _modules() -> list[object]:
    found = []
    for info in pkgutil.walk_packages(wattree.__path__, "wattree."):
        if info.name.endswith("__main__"):
            continue  # importing it runs the command line
        try:
            found.append(importlib.import_module(info.name))
        except (ImportError, MissingExtraError):
            # Parts with an optional dependency are read where it is installed.
            if not _needs_an_extra(info.name):
                raise
    return found


def _needs_an_extra(module: str) -> bool:
    return module.split(".")[1] in {"capture", "measure", "runtime", "validation", "search"}


#: Parameter of some error → a value of it; other parameters take a text.
ARGUMENTS = {
    "misfits": {"data.global_batch": "odd"},
    "problems": ["one", "two"],
    "rejected": {"memory": 7},
    "warnings": ("may be",),
    "known": ["a", "b"],
    "reply": b"no",
    "alike": 0.8,
}


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_error_comes_through_another_process_as_it_was(name: str) -> None:
    """A pool of processes pickles errors; one that cannot be read again hangs the pool."""
    named = {}
    if "__init__" in vars(CLASSES[name]):
        _, *own = inspect.signature(CLASSES[name].__init__).parameters
        named = {each: ARGUMENTS.get(each, "text\x1b[31m") for each in own}
    error = CLASSES[name](**named) if named else CLASSES[name]("text")
    error.add_note("where it was raised")

    for same in (copy.copy(error), *(pickle.loads(pickle.dumps(error, n)) for n in range(6))):
        assert type(same) is type(error)
        assert str(same) == str(error)
        assert vars(same) == vars(error)


def test_a_rejected_strategy_lists_every_misfit_in_order_of_place() -> None:
    """A user corrects all problems at once, so all are reported, in the order of the tree."""
    error = StrategyError({"layers[3]": "30 heads do not divide over 'tp' (8)", "embedding": "no"})

    assert str(error) == (
        "strategy rejected, 2 problem(s):\n"
        "  at embedding: no\n"
        "  at layers[3]: 30 heads do not divide over 'tp' (8)"
    )


def test_a_rejected_strategy_carries_its_misfits() -> None:
    """Search counts reasons, so the parts are fields and not only text."""
    misfits = {"a": "one", "b": "two"}

    assert StrategyError(misfits).misfits == misfits


def test_one_problem_of_a_job_stands_on_one_line() -> None:
    """The commonest case reads as a sentence."""
    assert str(JobError("job.yaml", ["model: missing"])) == "job.yaml: model: missing"


def test_several_problems_of_a_job_are_listed() -> None:
    """As for a strategy: all problems, once."""
    error = JobError("job.yaml", ["model: missing", "cluster: missing"])

    assert str(error) == "job.yaml: 2 problems:\n  model: missing\n  cluster: missing"
    assert error.problems == ("model: missing", "cluster: missing")


def test_an_unknown_name_suggests_the_nearest_and_lists_the_known() -> None:
    """Most unknown names are misspelled known ones."""
    error = UnknownNameError(
        kind="device", name="h100-smx", known=["v100", "h100-sxm"], where="job.yaml: cluster"
    )

    assert str(error) == (
        "job.yaml: cluster: unknown device 'h100-smx'; did you mean 'h100-sxm'? "
        "known: h100-sxm, v100"
    )


def test_an_unknown_name_without_any_known_one_says_so() -> None:
    """An empty list would look like a cut message."""
    assert str(UnknownNameError(kind="meter", name="x", known=[])) == (
        "unknown meter 'x'; known: none"
    )


def test_a_long_list_of_known_names_is_cut() -> None:
    """A catalog has hundreds of names; a message does not."""
    error = UnknownNameError(kind="model", name="?", known=[f"m{i:02}" for i in range(50)])

    assert str(error) == "unknown model '?'; `wattree catalog models` lists all 50"
    assert len(error.known) == 50


def test_a_missing_extra_says_what_to_install() -> None:
    """The message is the command to type."""
    error = MissingExtraError(needed_for="wattree validate --fit", package="pyarrow", extra="fit")

    assert str(error) == (
        "wattree validate --fit needs the package 'pyarrow', which is not installed; "
        "install it with: pip install '.[fit]' in your checkout of Wattree"
    )


def test_an_infeasible_request_counts_its_reasons() -> None:
    """`plan --json` prints the counts under `rejected`."""
    assert InfeasibleError("nothing fits", {"memory": 7}).rejected == {"memory": 7}


@given(known=st.lists(st.text(min_size=1), min_size=1))
def test_a_known_name_is_nearest_to_itself_up_to_case(known: list[str]) -> None:
    """Otherwise a suggestion could lead away from a name that only differs in case."""
    guess = nearest(known[0], known)

    assert guess is not None
    assert guess.lower() == known[0].lower()


def test_nothing_is_suggested_for_a_name_like_no_other() -> None:
    """A far-fetched suggestion is worse than none."""
    assert nearest("zzzz", ["h100-sxm", "a100-80gb"]) is None
