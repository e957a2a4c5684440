"""Norms, softmax, pools, tables, concatenations and moves as nests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from wattree.capture.convert.atoms import Size
from wattree.capture.convert.matmuls import SPATIAL
from wattree.capture.convert.pointwise import at, elementwise, rules_of, target_name
from wattree.capture.convert.trace import Label, NestTrace, Rule
from wattree.capture.recording import RecordedOperator
from wattree.graph import OperatorKind, SlidingWindow


def _layer_norm(trace: NestTrace, operator: RecordedOperator) -> None:
    rank = len(trace.size(operator.inputs[0]))
    over = len(operator.arguments.get("normalized_shape", [0]))
    function = "rms_norm" if "rms" in operator.target else "layer_norm"
    opaque = range(rank - over, rank)
    elementwise(trace, operator, kind=OperatorKind.NORM, function=function, opaque=opaque)
    trace.note_statistics(trace.nests[-1])


def _batch_norm(trace: NestTrace, operator: RecordedOperator) -> None:
    x, *others = operator.inputs
    own = [i for i in others if trace.is_parameter(i)]
    rank = len(trace.size(x))
    places = ["d0", "channel", *(f"d{i}" for i in range(2, rank))]

    def labels(index: int) -> list[Label]:
        return (
            list(places) if len(trace.size(index)) == rank else ["channel"] * len(trace.size(index))
        )

    nest = trace.add(
        operator,
        OperatorKind.BATCH_NORM,
        "batch_norm",
        [(index, labels(index)) for index in (x, *own)],
        [(out, labels(out)) for out in operator.outputs if trace.size(out) != (Size(0),)],
        stems={"channel": "channel"},
    )
    trace.note_statistics(nest)


def _group_norm(trace: NestTrace, operator: RecordedOperator) -> None:
    x, *parameters = operator.inputs
    rank = len(trace.size(x))
    channels, groups = trace.size(x)[1].length, int(operator.arguments.get("group", 1))
    split: Label = (("group", Size(groups)), ("channel", Size(channels // groups)))
    whole: list[Label] = ["d0", split, *(f"d{i}" for i in range(2, rank))]
    y, *statistics = operator.outputs
    nest = trace.add(
        operator,
        OperatorKind.NORM,
        "group_norm",
        [(x, whole), *((index, [split]) for index in parameters)],
        [(y, whole), *((out, ["d0", "group"]) for out in statistics)],
        stems={"group": "group", "channel": "channel"},
        opaque=frozenset({"channel", *(f"d{i}" for i in range(2, rank))}),
    )
    trace.note_statistics(nest)


def _softmax(trace: NestTrace, operator: RecordedOperator) -> None:
    function, dim = target_name(operator).removeprefix("_"), int(operator.arguments.get("dim", -1))
    elementwise(trace, operator, kind=OperatorKind.SOFTMAX, function=function, opaque=[dim])


def _pool(trace: NestTrace, operator: RecordedOperator) -> None:
    x, y = operator.inputs[0], operator.outputs[0]
    name = target_name(operator)
    rank = next((r for r in (1, 2, 3) if f"{r}d" in name), 2)
    spatial = SPATIAL[rank]
    lengths = [s.length for s in trace.size(x)[-rank:]]
    outs = [s.length for s in trace.size(y)[-rank:]]
    fitted = [max(1, a // max(1, b)) for a, b in zip(lengths, outs, strict=True)]

    def each(key: str, default: list[int]) -> tuple[int, ...]:
        value = operator.arguments.get(key) or default
        value = value if isinstance(value, list) else [value]
        return tuple(int(v) for v in (value * rank if len(value) == 1 else value))

    kernel = each("kernel_size", fitted)
    lead: list[Label] = [f"d{i}" for i in range(len(trace.size(x)) - rank)]
    labels: list[Label] = [*lead, *spatial]
    trace.add(
        operator,
        OperatorKind.POOL,
        "max_pool" if "max" in name else "avg_pool",
        [(x, labels)],
        [(out, labels) for out in operator.outputs],
        stems={stem: stem for stem in spatial},
        outputs_lead=True,
        more={
            "window": SlidingWindow(
                kernel=kernel,
                stride=each("stride", list(kernel)),
                dilation=each("dilation", [1]),
            )
        },
    )


def _embedding(trace: NestTrace, operator: RecordedOperator) -> None:
    table, rows = operator.inputs[:2]
    labels = [f"d{i}" for i in range(len(trace.size(rows)))]
    trace.add(
        operator,
        OperatorKind.EMBEDDING,
        "embedding",
        [(rows, labels), (table, ["vocab", "hidden"])],
        [(operator.outputs[0], [*labels, "hidden"])],
        stems={"vocab": "vocab", "hidden": "hidden"},
    )


def _embedding_bag(trace: NestTrace, operator: RecordedOperator) -> None:
    table, rows, *others = operator.inputs
    y, *sides = operator.outputs
    bags = trace.size(y)[0]
    per_bag = trace.size(rows)[0].over(bags)
    looked_up: list[Label] = (
        ["lookups"] if per_bag is None else [(("d0", bags), ("lookups", per_bag))]
    )
    trace.add(
        operator,
        OperatorKind.EMBEDDING,
        "embedding_bag",
        [
            (rows, looked_up),
            *((i, ["d0" if trace.size(i)[0] == bags else "bag_ends"]) for i in others if i != rows),
            (table, ["vocab", "hidden"]),
        ],
        [
            (y, ["d0", "hidden"]),
            *((i, ["d0"]) for i in sides if trace.size(i) == (bags,)),
        ],
        stems={"vocab": "vocab", "hidden": "hidden", "lookups": "lookups", "bag_ends": "bag_ends"},
        opaque=frozenset({"lookups", "bag_ends"}),
    )


def _cat(trace: NestTrace, operator: RecordedOperator) -> None:
    out = operator.outputs[0]
    parts = [i for i in operator.inputs if len(trace.size(i)) == len(trace.size(out))]
    rank = len(trace.size(out))
    place = at(int(operator.arguments.get("dim", 0)), rank)
    labels: list[Label] = [f"d{i}" for i in range(rank)]
    sizes = {trace.size(i)[place] for i in parts}
    out_labels = list(labels)
    if len(sizes) == 1 and len(parts) > 1:
        out_labels[place] = (("part", Size(len(parts))), (f"d{place}", sizes.pop()))
    trace.add(
        operator,
        OperatorKind.COPY,
        "cat",
        [(i, labels) for i in parts],
        [(out, out_labels)],
        opaque=frozenset({"part"})
        if len(out_labels) > 1 and out_labels != labels
        else frozenset({f"d{place}"}),
        outputs_lead=True,
    )


def _stack(trace: NestTrace, operator: RecordedOperator) -> None:
    out = operator.outputs[0]
    rank = len(trace.size(out))
    place = at(int(operator.arguments.get("dim", 0)), rank)
    labels: list[Label] = [f"d{i}" for i in range(rank - 1)]
    trace.add(
        operator,
        OperatorKind.COPY,
        "cat",
        [(i, labels) for i in operator.inputs],
        [(out, [*labels[:place], "part", *labels[place:]])],
        opaque=frozenset({"part"}),
    )


def _moved(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add a copy that shifts, pads or turns round some dims."""
    x, out = operator.inputs[0], operator.outputs[0]
    rank = len(trace.size(out))
    if len(trace.size(x)) != rank:
        _unrelated_copy(trace, operator)
        return
    dims = operator.arguments.get("dims")
    changed = {i for i in range(rank) if trace.size(x)[i] != trace.size(out)[i]}
    if isinstance(dims, list):
        changed |= {at(int(d), rank) for d in dims}
    name = target_name(operator)
    trace.add(
        operator,
        OperatorKind.COPY,
        "pad" if "pad" in name else name,
        [(x, [f"d{i}" for i in range(rank)])],
        [(out, [f"d{i}" for i in range(rank)])],
        opaque=frozenset(f"d{i}" for i in changed),
        outputs_lead=True,
    )


def add_unrelated(
    trace: NestTrace, operator: RecordedOperator, kind: OperatorKind, function: str = ""
) -> None:
    """Add a nest that follows only dims that grow with the batch; all others are opaque."""
    stands_for_batch = "batch"

    def labels(index: int, prefix: str) -> list[Label]:
        found: list[Label] = []
        for place, size in enumerate(trace.size(index)):
            batch = size.batch and stands_for_batch not in found
            found.append(stands_for_batch if batch else f"{prefix}{place}")
        return found

    inputs = [(i, labels(i, f"i{n}_")) for n, i in enumerate(operator.inputs)]
    outputs = [(i, labels(i, f"o{n}_")) for n, i in enumerate(operator.outputs)]
    trace.add(
        operator,
        kind,
        function or target_name(operator),
        inputs,
        outputs,
        opaque=frozenset(
            str(label)
            for _, of_tensor in (*inputs, *outputs)
            for label in of_tensor
            if label != stands_for_batch
        ),
        outputs_lead=True,
    )


_unrelated_copy = partial(add_unrelated, kind=OperatorKind.COPY)
STRUCTURED: Mapping[str, Rule] = rules_of(
    "structured",
    layer_norm=_layer_norm,
    batch_norm=_batch_norm,
    group_norm=_group_norm,
    softmax=_softmax,
    pool=_pool,
    embedding=_embedding,
    embedding_bag=_embedding_bag,
    cat=_cat,
    stack=_stack,
    moved=_moved,
    unrelated_copy=_unrelated_copy,
)
