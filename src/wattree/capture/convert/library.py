"""Operators of library kernels: mixtures of experts, selective scans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from wattree.capture.convert.trace import Label, NestTrace, Rule
from wattree.capture.recording import RecordedOperator, Recording
from wattree.graph import SCAN, Extent, OperatorKind

_SCAN: Final = "wattree.selective_scan"
_STATES: Final = "wattree.scanned_states"
_READ_OUT: Final = "wattree.scan_product"


def with_scans_apart(recording: Recording) -> Recording:
    """Return the recording with each selective scan as a pass over the steps and a matmul.

    The pass moves bytes; the only product is that which reads the outputs off the states.
    """
    if not any(operator.target.startswith(_SCAN) for operator in recording.operators):
        return recording
    tensors = list(recording.tensors)
    storages = max(tensor.storage for tensor in tensors)
    operators: list[RecordedOperator] = []
    for operator in recording.operators:
        if not operator.target.startswith(_SCAN):
            operators.append(operator)
            continue
        y, *states = operator.outputs
        storages += 1
        scanned = len(tensors)
        tensors.append(replace(tensors[y], storage=storages))
        get = operator.arguments
        matrix, read_out = (operator.inputs[get[name]["tensor"]] for name in ("a", "c"))
        none = Extent(coefficient=0.0)
        operators.append(
            replace(
                operator,
                target=_STATES,
                outputs=(scanned, *states),
                flop=none,
                input_gradient_flop=none,
                weight_gradient_flop=none,
            )
        )
        operators.append(
            replace(
                operator,
                target=_READ_OUT,
                inputs=(read_out, matrix, scanned),
                outputs=(y,),
                arguments={},
                saved=(),
            )
        )
    return replace(recording, operators=tuple(operators), tensors=tuple(tensors))


def _states(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add the pass over all steps: it reads and writes each tensor once."""
    scanned, *states = operator.outputs
    get = operator.arguments

    def at(name: str, *labels: Label) -> list[tuple[int, list[Label]]]:
        place = get.get(name)
        if not isinstance(place, Mapping):
            return []
        index = operator.inputs[place["tensor"]]
        # Of several ways to hand a tensor over, the last dims are the same.
        return [(index, list(labels[-len(trace.size(index)) :]))]

    whole = ("samples", "channels", "steps")
    trace.add(
        operator,
        OperatorKind.OTHER,
        "selective_scan",
        [
            *at("x_BDS", *whole),
            *at("dt", *whole),
            *at("a", "channels", "states"),
            *at("b", "samples", "states", "steps"),
            *at("c", "samples", "states", "steps"),
            *at("d", "channels"),
            *at("z", *whole),
            *at("bias", "channels"),
        ],
        [
            (scanned, list(whole)),
            *((index, ["samples", "channels", "chunks", "kept"]) for index in states),
        ],
        opaque=frozenset({"steps", "states", "chunks", "kept"}),
    )
    trace.note_statistics(trace.nests[-1])


def _chunked_pass(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add the pass of a recurrence over chunks: it reads and writes each tensor once."""
    token: tuple[Label, ...] = ("samples", "steps", "heads")
    given = operator.arguments
    at = {
        name: operator.inputs[place["tensor"]]
        for name, place in given.items()
        if isinstance(place, Mapping) and "tensor" in place
    }
    heads = trace.size(at["value"])[2]
    key_heads = "heads" if trace.size(at["query"])[2] == heads else "key_heads"
    labels: dict[str, tuple[Label, ...]] = {
        **dict.fromkeys(("query", "key"), ("samples", "steps", key_heads, "key")),
        "value": (*token, "value"),
        "decay": (*token, "key"),
        "gate": token,
        **dict.fromkeys(("a", "d", "bias"), ("heads",)),
    }
    pieces, states, kept, sums = operator.outputs
    reads = [(i, list(labels[name][: len(trace.size(i))])) for name, i in at.items()]
    nest = trace.add(
        operator,
        OperatorKind.OTHER,
        SCAN,
        reads,
        [
            (pieces, [*token, "in"]),
            (states, ["samples", "heads", "turns", "in", "value"]),
            (kept, [*token, "kept"]),
            (sums, list(labels["decay"][: len(trace.size(sums))])),
        ],
        opaque=frozenset({"steps", "key", "value", "in", "turns", "kept"}),
    )
    trace.note_statistics(nest, first=3)


def _declared(kind: OperatorKind, function: str, reads: str, writes: str, **more: Any) -> Rule:
    """Return the rule of an operator by the labels of its tensors, `-` for a dim without a loop.

    Args:
        reads, writes: Labels of each tensor, commas between; what is not there is left out.
        more: Further fields of `Nest`.
    """

    def labelled(indices: Iterable[int], text: str) -> list[tuple[int, list[Label]]]:
        return [
            (index, [None if label == "-" else label for label in labels.split()])
            for index, labels in zip(indices, text.split(","), strict=False)
        ]

    def rule(trace: NestTrace, operator: RecordedOperator) -> None:
        inputs, outputs = labelled(operator.inputs, reads), labelled(operator.outputs, writes)
        trace.add(operator, kind, function, inputs, outputs, **more)

    return rule


#: Rows with the matrix of one expert each: every row meets one, so that experts are no loop; the
#: parameter holds those of all, as that of biases does.
_GROUPED: Final = _declared(
    OperatorKind.MATMUL,
    "grouped_linear",
    "rows in, - in out, -, -",
    "rows out",
    stems={"in": "in", "out": "out"},
)

LIBRARY: Mapping[str, Rule] = {
    "scanned_states": _states,
    "scan_product": _declared(
        OperatorKind.MATMUL,
        "scan_product",
        "samples in steps, channels in, samples channels steps",
        "samples channels steps",
        stems={"in": "in", "channels": "out"},
        follows=True,
    ),
    "chunked_pass": _chunked_pass,
    "chunked_product": _declared(
        OperatorKind.MATMUL,
        "chunked_product",
        "samples steps heads in, samples heads turns in out",
        "samples steps heads out",
        stems={"in": "in", "out": "out"},
    ),
    "grouped_mm_fallback": _GROUPED,
    "_grouped_mm": _GROUPED,
    "dispatch": _declared(
        OperatorKind.PERMUTE,
        "dispatch",
        "tokens hidden, tokens choices",
        "tokens choices hidden, -",
        kernels=3,  # sort by expert, count, gather
    ),
    "combine": _declared(
        OperatorKind.PERMUTE,
        "combine",
        "tokens choices hidden, tokens choices",
        "tokens hidden",
        kernels=2,  # weigh, scatter-add
    ),
    "expert_bias": _declared(
        OperatorKind.ELEMENTWISE,
        "bias_add",
        "tokens choices out, - out",
        "tokens choices out",
        stems={"out": "out"},
    ),
}
