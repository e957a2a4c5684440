"""Operators of library kernels: mixtures of experts, selective scans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

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


def _read_out(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add the matmul of states that computes a scan's outputs."""
    read_out, matrix, scanned = operator.inputs
    trace.add(
        operator,
        OperatorKind.MATMUL,
        "scan_product",
        [
            (read_out, ["samples", "in", "steps"]),
            (matrix, ["channels", "in"]),
            (scanned, ["samples", "channels", "steps"]),
        ],
        [(operator.outputs[0], ["samples", "channels", "steps"])],
        stems={"in": "in", "channels": "out"},
        follows=True,
    )


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


def _chunked_product(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add the products of a recurrence over chunks."""
    pieces, states = operator.inputs
    trace.add(
        operator,
        OperatorKind.MATMUL,
        "chunked_product",
        [
            (pieces, ["samples", "steps", "heads", "in"]),
            (states, ["samples", "heads", "turns", "in", "out"]),
        ],
        [(operator.outputs[0], ["samples", "steps", "heads", "out"])],
        stems={"in": "in", "out": "out"},
    )


def _grouped(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add the matmul of rows with the matrix of one expert each.

    Every row meets one matrix, so that experts are no loop; the parameter holds all of them.
    """
    rows, weight, *ends = operator.inputs
    trace.add(
        operator,
        OperatorKind.MATMUL,
        "grouped_linear",
        [(rows, ["rows", "in"]), (weight, [None, "in", "out"]), *((i, [None]) for i in ends)],
        [(operator.outputs[0], ["rows", "out"])],
        stems={"in": "in", "out": "out"},
    )


def _dispatch(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add the way of tokens to their experts; where the rows of each end is known there."""
    hidden, index = operator.inputs
    rows, ends = operator.outputs
    trace.add(
        operator,
        OperatorKind.PERMUTE,
        "dispatch",
        [(hidden, ["tokens", "hidden"]), (index, ["tokens", "choices"])],
        [(rows, ["tokens", "choices", "hidden"]), (ends, [None])],
        kernels=3,  # sort by expert, count, gather
    )


def _combine(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add the way back, and the weighted sum of what a token's experts have made."""
    rows, weights, _ = operator.inputs
    trace.add(
        operator,
        OperatorKind.PERMUTE,
        "combine",
        [(rows, ["tokens", "choices", "hidden"]), (weights, ["tokens", "choices"])],
        [(operator.outputs[0], ["tokens", "hidden"])],
        kernels=2,  # weigh, scatter-add
    )


def _expert_bias(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add the bias of each row's expert; the parameter holds those of all."""
    rows, bias, _ = operator.inputs
    labels: list[Label] = ["tokens", "choices", "out"]
    trace.add(
        operator,
        OperatorKind.ELEMENTWISE,
        "bias_add",
        [(rows, labels), (bias, [None, "out"])],
        [(operator.outputs[0], labels)],
        stems={"out": "out"},
    )


LIBRARY: Mapping[str, Rule] = {
    "scanned_states": _states,
    "scan_product": _read_out,
    "chunked_pass": _chunked_pass,
    "chunked_product": _chunked_product,
    "grouped_mm_fallback": _grouped,
    "_grouped_mm": _grouped,
    "dispatch": _dispatch,
    "combine": _combine,
    "expert_bias": _expert_bias,
}
