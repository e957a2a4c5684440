"""Names of a model's matmuls: paths of operators, and of the modules that they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from wattree.errors import ModelError, nearest
from wattree.graph import BlockInstance, Operator

#: Names that a message lists.
_MOST_LISTED: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorNames:
    """Names of one operator of one instance.

    Attributes:
        whole: Its path in the model and its path in the block, and those of its module where that
            is the block itself or has further operators.
        parts: Where it does the work of several modules side by side: for each, its path in the
            model, then its path in the block.
    """

    whole: tuple[str, ...]
    parts: tuple[str, ...] = ()

    def match(self, patterns: Sequence[str]) -> bool:
        """Return whether any pattern names it or a part of it."""
        return any(matches(name, p) for name in (*self.whole, *self.parts) for p in patterns)

    def match_whole(self, patterns: Sequence[str]) -> bool:
        """Return whether a pattern names it."""
        return any(matches(name, pattern) for name in self.whole for pattern in patterns)

    def places(self, patterns: Sequence[str]) -> tuple[int, ...]:
        """Return the places of the parts that are named: by themselves, or all by its own name."""
        pairs = list(zip(self.parts[::2], self.parts[1::2], strict=True))
        return tuple(
            place
            for place, pair in enumerate(pairs)
            if self.match_whole(patterns) or any(matches(n, p) for n in pair for p in patterns)
        )


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches `name`; a bare name matches all paths that end in it."""
    return fnmatchcase(name, pattern) or name.endswith(f".{pattern}")


def refuse_unmatched(
    model: str,
    patterns: Sequence[str],
    names: Iterable[str],
    *,
    what: str,
    kind: str,
    named: Callable[[str, str], bool] = fnmatchcase,
    usual: Sequence[str] = (),
) -> None:
    """Reject patterns that match nothing.

    Args:
        patterns: As a job states them.
        usual: Further names, which are better known than others.

    Raises:
        ModelError: There are no patterns, or some match no name.
    """
    known = sorted(names, key=lambda name: (name.count("."), name))
    last = [] if named is fnmatchcase else [name.rpartition(".")[2] for name in known]
    unmatched = [each for each in patterns if not any(named(name, each) for name in known)]
    guesses = [nearest(p, [*last, *known, *(usual if "*" not in p else ())]) for p in unmatched]
    of_any_layer = [name for name in known if not any(map(str.isdigit, name.split(".")))]
    listed = [*usual, *(of_any_layer or known)][:_MOST_LISTED]
    problems = [
        f"'{pattern}' matches no {kind}" + (f"; did you mean '{guess}'?" if guess else "")
        for pattern, guess in zip(unmatched, guesses, strict=True)
    ]
    if not patterns:
        problems = [f"found no pattern, expected at least one, such as '{listed[0]}'"]
    elif not all(guesses):
        problems.append(f"known: {', '.join(listed)}")
    if problems:
        raise ModelError(f"{model}: {what}: " + "; ".join(problems))


def operator_names(instance: BlockInstance, operator: Operator) -> OperatorNames:
    """Return the possible names of an instance's operator."""
    whole: tuple[str, ...] = (f"{instance.path}.{operator.path}", operator.path)
    weight = operator.parameters[0].name if operator.parameters else ""
    if weight == "weight":
        whole = (*whole, instance.path)  # the block is a layer of its own
    module = weight.removesuffix(".weight")
    if operator.path.startswith(f"{module}."):  # which runs other operators, too
        whole = (*whole, f"{instance.path}.{module}", module)
    inside = _side_by_side(operator.path)
    parts = (name for path in inside for name in (f"{instance.path}.{path}", path))
    return OperatorNames(whole=whole, parts=tuple(parts))


def _side_by_side(path: str) -> tuple[str, ...]:
    """Return the paths that `attention.q_proj+k_proj` joins; none for a single one."""
    first, *others = path.split("+")
    if not others:
        return ()
    shared = first.split(".")[: -len(others[0].split("."))]
    return (first, *(".".join((*shared, other)) for other in others))
