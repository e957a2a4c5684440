"""Attention and cross-entropy as nests: one operator of the graph for several recorded ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wattree.capture.convert.atoms import Size
from wattree.capture.convert.masks import is_causal, is_selected
from wattree.capture.convert.nests import Nest, Seen
from wattree.capture.convert.pointwise import rules_of, target_name
from wattree.capture.convert.trace import Label, NestTrace, Rule
from wattree.capture.recording import RecordedOperator
from wattree.graph import AttentionMask, OperatorKind


def _attention(trace: NestTrace, operator: RecordedOperator) -> None:
    q, k, v, *masks = operator.inputs
    *lead, heads, _, width = (Size(1), *trace.size(q))[-max(3, len(trace.size(q))) :]
    kv_heads, value_width = (Size(1), *trace.size(k))[-3], trace.size(v)[-1]
    if heads.batch:  # samples and heads in one dim, or no heads at all
        lead, heads, kv_heads = [*lead, heads], Size(1), Size(1)
    shared = heads.over(kv_heads) or Size(1)
    batch: list[Label] = [f"batch{i}" for i in range(len(lead))]
    head: Label = "heads"
    if shared.length > 1 and heads != kv_heads:
        head = (("heads", kv_heads), ("heads_alike", shared))
    heads_of = [head] if len(lead) + 2 < len(trace.size(q)) else []
    kv_of: list[Label] = ["heads"] if heads_of else []
    y, *statistics = operator.outputs
    # A mask that only hides later positions is a matter of the kernel; others are read.
    hiding = [mask for mask in masks if not trace.follows(mask) and is_causal(trace, mask)]
    causal = bool(operator.arguments.get("is_causal")) or bool(hiding)
    hiding = [mask for mask in hiding if not is_selected(trace, mask)]
    scores: list[Label] = [*batch, *heads_of, "seq", "kv_seq"]
    nest = trace.add(
        operator,
        OperatorKind.ATTENTION,
        "scaled_dot_product_attention",
        [
            (q, [*batch, *heads_of, "seq", "head_dim"]),
            (k, [*batch, *kv_of, "kv_seq", "head_dim"]),
            (v, [*batch, *kv_of, "kv_seq", "value_dim"]),
            *(
                (mask, _broadcast(trace, mask, scores))
                for mask in masks
                if mask not in hiding and len(trace.size(mask)) <= len(scores)
            ),
        ],
        [
            (y, [*batch, *heads_of, "seq", "value_dim"]),
            *(
                (out, [*batch, *heads_of, "seq"])
                for out in statistics
                if len(trace.size(out)) == len(trace.size(q)) - 1
            ),
        ],
        stems={
            **{str(label): "window" for label in batch},
            "heads_alike": "heads",
            **{name: name for name in ("heads", "seq", "kv_seq", "head_dim", "value_dim")},
        },
        opaque=frozenset({"head_dim", "value_dim"}),
        more={
            "mask": AttentionMask(causal=causal),
            "query_heads": heads.length,
            "kv_heads": kv_heads.length,
            "head_dim": width.length,
            "value_head_dim": value_width.length,
        },
    )
    _name_attention(trace, (q, k, v, y), len(lead), heads_of)
    trace.note_statistics(nest)
    _read_unrepeated(trace, nest, keeps=bool(operator.saved))
    trace.unread += [trace.view(mask).tensor for mask in hiding]


def _name_attention(
    trace: NestTrace, tensors: tuple[int, ...], leading: int, heads_of: list[Label]
) -> None:
    names = (
        *("batch" if i == 0 else "window" for i in range(leading)),
        *("heads" for _ in heads_of),
        "seq",
        "head_dim",
    )
    for index in tensors:
        trace.name_dims(index, names)


def _broadcast(trace: NestTrace, mask: int, scores: list[Label]) -> list[Label]:
    """Return labels of a mask, those of dims of length 1 left out."""
    sizes = trace.size(mask)
    return [
        None if size == Size(1) else label
        for size, label in zip(sizes, scores[len(scores) - len(sizes) :], strict=True)
    ]


def _read_unrepeated(trace: NestTrace, nest: Nest, *, keeps: bool) -> None:
    """Let attention read, and keep, keys and values as they were before they were repeated.

    Fused kernels share them between query heads; only the CPU's needs copies.
    """
    for place in (1, 2):
        seen = nest.reads[place]
        writer = trace.tensors[seen.tensor].writer
        copy = trace.nests[writer] if writer is not None else None
        if copy is None or copy.kind is not OperatorKind.COPY or len(copy.reads) != 1:
            continue
        source = copy.reads[0]
        root = {a for dim in trace.tensors[source.tensor].dims for a in trace.atoms.leaves(dim)}
        repeated = {a for dim in source.dims for a in trace.atoms.leaves(dim)} - root
        if not repeated or copy.function == "view":
            continue
        copy.dead = True
        nest.saved += [trace.storage_of(source.tensor)] * keeps
        nest.reads[place] = Seen(
            tensor=source.tensor, dims=seen.dims, labels=seen.labels, detached=source.detached
        )
        kv_heads = trace.atoms.length(
            [a for a in trace.atoms.leaves(seen.dims[-3]) if a not in repeated]
        ).length
        nest.more["kv_heads"] = kv_heads


def _cross_entropy(trace: NestTrace, operator: RecordedOperator) -> None:
    scores, targets = operator.inputs[:2]
    before = trace.writer_of(scores)
    out = operator.outputs[0]
    rank = len(trace.size(scores))
    place = 1 if rank > 1 else 0
    labels: list[Label] = [f"d{i}" for i in range(rank)]
    labels[place] = "vocab"
    rows = [label for i, label in enumerate(labels) if i != place]
    if before is None or before.function != "log_softmax" or before.dead:
        trace.add(
            operator,
            OperatorKind.REDUCTION,
            target_name(operator),
            [(scores, labels), (targets, rows)],
            [(out, rows if len(trace.size(out)) == len(rows) else [])],
        )
        return
    before.dead = True
    logits = _before_cast(trace, before.reads[0])
    number = logits.tensor
    nest = trace.add(
        operator,
        OperatorKind.CROSS_ENTROPY,
        "cross_entropy",
        [(scores, labels), (targets, rows)],
        [(out, rows if len(trace.size(out)) == len(rows) else [])],
        stems={"vocab": "vocab"},
        kernels=3,  # to float32, log-softmax, pick
    )
    walk = nest.reads[0]
    nest.reads[0] = replace(walk, tensor=number, detached=logits.detached)
    tensor = trace.tensors[nest.writes[0].tensor]
    tensor.grad = trace.tensors[number].grad
    if not nest.writes[0].dims:  # the loss of each row: what is summed up is no work
        dims = tuple(d for d, label in zip(walk.dims, walk.labels, strict=True) if label != "vocab")
        tensor.dims = dims
        nest.writes[0] = Seen(tensor=tensor.number, dims=dims, labels=tuple(str(r) for r in rows))
    nest.saved.append(trace.storage_of(number))
    trace.replaced[trace.storage_at(scores)] = trace.storage_of(number)


def _before_cast(trace: NestTrace, seen: Seen) -> Seen:
    """Return the scores as they were before they were made float32 for the loss."""
    writer = trace.tensors[seen.tensor].writer
    cast = trace.nests[writer] if writer is not None else None
    if cast is None or cast.function != "cast" or len(cast.reads) != 1:
        return seen
    cast.dead = True
    return cast.reads[0]


FUSED: Mapping[str, Rule] = rules_of("fused", attention=_attention, cross_entropy=_cross_entropy)
