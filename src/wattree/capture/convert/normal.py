"""Joins hand-written chains to the operators that they implement: norms, rotations, gates.

The constants of software families were fitted on graphs with one operator for each of these (the
catalog's). A captured model gets the same form, so that one constant means one thing: the chain's
launches are kept, its intermediate results are neither moved nor kept for backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from wattree.capture.convert.nests import Nest, Seen
from wattree.capture.convert.trace import NestTrace
from wattree.capture.recording import TensorSource
from wattree.graph import OperatorKind

_GELU = "gelu_new"
#: What gates scale by.
_ACTIVATIONS = ("silu", "gelu", _GELU, "relu", "sigmoid", "tanh")
_PASSING = ("cast", "copy")


def normal_form(trace: NestTrace, nests: Sequence[Nest]) -> list[Nest]:
    """Return the nests with chains made one."""
    chains = _Chains(trace, nests)
    found: list[Nest] = []
    for nest in nests:
        for match in _MATCHES:
            made = match(chains, nest)
            if made is not None:
                chains.replace(nest, *made)
                break
    gone = {id(nest) for nest in chains.gone}
    for nest in nests:
        whole = chains.made.get(id(nest), nest)  # itself a part of another, perhaps
        if id(whole) not in gone:
            found.append(whole)
    return found


class _Chains:
    """Who writes and who reads each tensor."""

    def __init__(self, trace: NestTrace, nests: Sequence[Nest]) -> None:
        self.trace = trace
        self.writer: dict[int, Nest] = {}
        self.readers: dict[int, list[Nest]] = {}
        for nest in nests:
            for seen in nest.reads:
                self.readers.setdefault(seen.tensor, []).append(nest)
            for seen in nest.writes:
                self.writer[seen.tensor] = nest
        self.gone: list[Nest] = []
        self.made: dict[int, Nest] = {}

    def replace(self, last: Nest, made: Nest, parts: Sequence[Nest]) -> None:
        """Put `made` in the place of `last`, and leave out all parts."""
        made.kernels = sum(part.kernels for part in parts)
        self.made[id(last)] = made
        self.gone += [part for part in parts if self.made.get(id(part)) is not made]
        for seen in made.writes:
            self.writer[seen.tensor] = made

    def before(self, seen: Seen, *functions: str) -> Nest | None:
        """Return the writer of an operand, if it is one of these and has no other reader."""
        nest = self.writer.get(seen.tensor)
        if nest is None or nest.function not in functions:
            return None
        return nest if len(self.readers.get(seen.tensor, ())) == 1 else None

    def chain(self, seen: Seen, *functions: str) -> list[Nest]:
        """Return writers of these functions, the last first, each of which reads but the next."""
        found: list[Nest] = []
        for function in functions:
            nest = self.before(seen, function)
            if nest is None or not nest.reads or (found and len(found[-1].reads) > 1):
                return []
            found.append(nest)
            seen = nest.reads[0]
        return found

    def uncast(self, seen: Seen) -> tuple[Seen, list[Nest]]:
        """Return an operand as it was before it was cast, and the casts."""
        casts = []
        while (cast := self.before(seen, *_PASSING)) is not None and len(cast.reads) == 1:
            casts.append(cast)
            seen = cast.reads[0]
        return seen, casts

    def weight(self, seen: Seen) -> tuple[Seen, list[Nest]] | None:
        """Return the parameter that an operand is, or one more than, and what makes it of that."""
        parts: list[Nest] = []
        while (made := self.before(seen, "add", *_PASSING)) is not None and len(made.reads) == 1:
            if len(made.reads[0].dims) != len(seen.dims):
                return None
            parts.append(made)
            seen = replace(made.reads[0], labels=seen.labels)
        is_parameter = self.trace.tensors[seen.tensor].source is TensorSource.PARAMETER
        return (seen, parts) if is_parameter else None

    def width(self, seen: Seen) -> float | None:
        """Return the bytes of an element where it is not an activation's."""
        return self.trace.tensors[seen.tensor].width


_Match = tuple[Nest, list[Nest]]


def _rms_norm(chains: _Chains, nest: Nest) -> _Match | None:
    """Match `x * rsqrt(mean(x**2) + eps)`, scaled by a weight or not."""
    if nest.function != "mul":
        return None
    weights = {id(seen): found for seen in nest.reads if (found := chains.weight(seen))}
    rest = [seen for seen in nest.reads if id(seen) not in weights]
    if len(weights) == 1 and len(rest) == 1:
        return _scaled_norm(chains, nest, *weights.popitem()[1], rest[0])
    if weights or _is_scaled(chains, nest):
        return None
    found = _normalized(chains, nest)
    return None if found is None else _norm(chains, nest, found[0], [], found[1])


def _scaled_norm(
    chains: _Chains, nest: Nest, weight: Seen, made: Sequence[Nest], scaled: Seen
) -> _Match | None:
    normed, casts = chains.uncast(scaled)
    inner = chains.before(normed, "mul")
    found = _normalized(chains, inner) if inner is not None else None
    if found is None or len(found[0].dims) != len(scaled.dims):
        return None
    x = replace(found[0], labels=scaled.labels)
    return _norm(chains, nest, x, [weight], [*found[1], *casts, *made, nest])


def _norm_in_fp32(chains: _Chains, nest: Nest) -> _Match | None:
    """Match a norm that is scaled in fp32 and then cast to the width of its input."""
    norm = chains.before(nest.reads[0], "rms_norm") if nest.function == "cast" else None
    if norm is None or len(norm.reads) < 2 or chains.width(norm.writes[0]) is None:
        return None
    if {chains.width(norm.reads[0]), chains.width(nest.writes[0])} != {None}:
        return None
    same = (nest.reads[0].labels, nest.writes[0].labels, norm.writes[0].labels)
    if len(set(same)) != 1:
        return None
    return replace(norm, function="rms_norm_fp32", writes=nest.writes), [norm, nest]


def _is_scaled(chains: _Chains, nest: Nest) -> bool:
    """Return whether a weight scales a multiplication's result."""
    readers = chains.readers.get(nest.writes[0].tensor, [])
    while len(readers) == 1 and readers[0].function in _PASSING:
        readers = chains.readers.get(readers[0].writes[0].tensor, [])
    return (
        len(readers) == 1
        and readers[0].function == "mul"
        and any(chains.weight(seen) for seen in readers[0].reads)
    )


def _normalized(chains: _Chains, nest: Nest) -> tuple[Seen, list[Nest]] | None:
    for x, scale in (nest.reads, nest.reads[::-1]) if len(nest.reads) == 2 else ():
        root = chains.before(scale, "rsqrt")
        shifted = chains.before(root.reads[0], "add") if root else None
        mean = chains.before(shifted.reads[0], "mean") if shifted else None
        power = chains.before(mean.reads[0], "pow", "square", "mul") if mean else None
        if root is None or shifted is None or mean is None or power is None:
            continue
        if any(seen.tensor != x.tensor for seen in power.reads):
            continue
        source, casts = x, list[Nest]()
        cast = chains.writer.get(x.tensor)
        readers = chains.readers.get(x.tensor, ())
        if cast is not None and cast.function == "cast" and len(readers) == 2:
            source, casts = replace(cast.reads[0], labels=x.labels), [cast]
        return source, [*casts, power, mean, shifted, root, nest]
    return None


def _norm(chains: _Chains, last: Nest, x: Seen, weights: list[Seen], parts: list[Nest]) -> _Match:
    label = x.labels[-1]
    made = replace(
        last,
        kind=OperatorKind.NORM,
        function="rms_norm",
        reads=[x, *weights],
        opaque=frozenset({label} if label else ()),
        saved=[chains.trace.storage_of(x.tensor)],
    )
    return made, parts


def _rotary(chains: _Chains, nest: Nest) -> _Match | None:
    """Match `x * cos + turned(x) * sin`, where `turned` swaps the halves of each head."""
    if nest.function != "add" or len(nest.reads) != 2:
        return None
    for straight, turned in (nest.reads, nest.reads[::-1]):
        one, other = chains.before(straight, "mul"), chains.before(turned, "mul")
        if one is None or other is None or len(one.reads) != 2 or len(other.reads) != 2:
            continue
        for halves, sin in (other.reads, other.reads[::-1]):
            cat = chains.before(halves, "cat")
            found = _swapped(chains, cat) if cat is not None else None
            if cat is None or found is None:
                continue
            tensor, parts = found
            x = next((seen for seen in one.reads if seen.tensor == tensor), None)
            if x is None:
                continue
            cos = next(seen for seen in one.reads if seen is not x)
            made = replace(nest, function="rotary", reads=[x, cos, sin], saved=list[int]())
            made.saved = [chains.trace.storage_of(seen.tensor) for seen in (cos, sin)]
            return made, [one, *parts, cat, other, nest]
    return None


def _swapped(chains: _Chains, cat: Nest) -> tuple[int, list[Nest]] | None:
    """Return the tensor whose halves a concatenation swaps, one negated, and the parts."""
    if len(cat.reads) != 2:
        return None
    parts: list[Nest] = []
    tensors = set()
    turned = 0
    for seen in cat.reads:
        half = chains.before(seen, "neg", "slice")
        if half is not None and half.function == "neg":
            parts.append(half)
            turned += 1
            half = chains.before(half.reads[0], "slice")
        if half is None:
            return None
        parts.append(half)
        tensors.add(half.reads[0].tensor)
    return (tensors.pop(), parts) if len(tensors) == 1 and turned == 1 else None


def _gate(chains: _Chains, nest: Nest) -> _Match | None:
    """Match an activation of one projection that scales another."""
    if nest.function != "mul" or len(nest.reads) != 2:
        return None
    for scale, other in (nest.reads, nest.reads[::-1]):
        act = chains.before(scale, *_ACTIVATIONS)
        if act is None or len(act.reads) != 1 or act.reads[0].tensor == other.tensor:
            continue
        gate = act.reads[0]
        if len(gate.dims) != len(other.dims) or gate.labels != scale.labels:
            continue
        made = replace(
            nest,
            function=f"{act.function}_gate",
            reads=[gate, other],
            saved=[chains.trace.storage_of(seen.tensor) for seen in (gate, other)],
        )
        return made, [act, nest]
    return None


def _gelu_new(chains: _Chains, nest: Nest) -> _Match | None:
    """Match `x * a * (1 + tanh(b * (x + c * x**3)))`, GPT-2's GELU."""
    if nest.function != "mul" or len(nest.reads) != 2:
        return None
    for half, rest in (nest.reads, nest.reads[::-1]):
        outer = chains.chain(half, "mul")
        tangent = chains.chain(rest, "add", "tanh", "mul", "add")
        if not outer or not tangent or (len(outer[0].reads), len(tangent[-1].reads)) != (1, 2):
            continue
        x = outer[0].reads[0]
        powers = next((p for s in tangent[-1].reads if (p := chains.chain(s, "mul", "pow"))), [])
        parts = [*outer, *powers, *tangent]
        if powers and {s.tensor for part in (*outer, powers[-1]) for s in part.reads} == {x.tensor}:
            if x.tensor not in {seen.tensor for seen in tangent[-1].reads}:
                continue
            saved = [chains.trace.storage_of(x.tensor)]
            return replace(nest, function=_GELU, reads=[x], saved=saved), [*parts, nest]
    return None


_MATCHES: tuple[Callable[[_Chains, Nest], _Match | None], ...] = (
    _rms_norm,
    _norm_in_fp32,
    _rotary,
    _gelu_new,
    _gate,
)
