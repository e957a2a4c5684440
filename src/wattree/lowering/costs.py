"""Evaluate symbolic programs: time, FLOP and bytes for one strategy or arrays of strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from wattree.arrays import Floats
from wattree.cost import Software
from wattree.cost.rates import Rates
from wattree.lowering.colocation import SharedWork
from wattree.lowering.groups import GroupShapes
from wattree.lowering.host_stretch import stretch_to_host
from wattree.lowering.matmul_costs import is_quantized
from wattree.lowering.memory_tier_access import stored_whole, tier2_accesses, tier2_saved_rows
from wattree.lowering.phase_costs import PhaseCosts, phase_costs
from wattree.lowering.program import (
    BlockProgram,
    ComputeInstruction,
    Instruction,
    SavedTensor,
    Scale,
)

#: Of an element that matmuls in 16 bits read as it is.
_NARROW_BYTES = 2.0
_FULL_BYTES = 4.0
#: Kind of what autocast casts.
_CASTS, _WEIGHT_CASTS = "casts", "weight_casts"
#: Outputs of experts are saved for the weighting, unless weights are applied before.
_EXPERTS, _WEIGHING = "expert", "combine"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCosts:
    """Costs of a block's phases and the bytes it saves, arrays over `n` strategies.

    `shared` holds the queueing terms where several processes share the device, else None.
    """

    program: BlockProgram
    forward: PhaseCosts
    recomputation: PhaseCosts
    backward: PhaseCosts
    saved_bytes: Floats  # (saved tensors, n), those on the device
    boundary_bytes: Floats  # (boundary tensors, n)
    shared: SharedWork | None = None
    tier2_saved_bytes: Floats | None = None  # (n,), kept in expanded memory that the device reaches
    tier2_traffic_bytes: Floats | None = None  # (n,), to and from it in one micro-batch


class BlockCosting:
    """Costs of blocks under one scale; passes that programs have in common are evaluated once."""

    def __init__(
        self, scale: Scale, placement: GroupShapes, rates: Rates, software: Software
    ) -> None:
        self._scale, self._placement, self._rates = scale, placement, rates
        self._software = software
        # Keyed by instruction ids; the value references the programs so that ids stay valid.
        self._known: dict[tuple[object, ...], tuple[BlockProgram, _CostedPass]] = {}

    def of(self, program: BlockProgram) -> BlockCosts:
        """Return the costs of one block."""
        read = rates, software = by_read_width(program, self._rates, self._software)
        saved_bytes = _saved_bytes(program, self._scale, rates, software)
        tier2: Floats | None = None
        moved: tuple[Mapping[int, Floats], ...] = ({}, {}, {})
        if rates.expanded is not None:
            tier2 = tier2_saved_rows(program, saved_bytes, rates.expanded)
            saved_bytes, moved = saved_bytes - tier2, tier2_accesses(program, tier2)
        # Threads of one interpreter launch forwards in turn; backward has a thread of C++ by
        # device.
        launches = self._scale.launches
        ahead = self._pass(program, read, (program.forward,), moved[:1], launches=launches)
        back = self._pass(program, read, (program.recomputation, program.backward), moved[1:])
        (forward,), (again, backward) = ahead.phases, back.phases
        if _CASTS not in _left_out(rates, software):
            forward, backward = _around_loss(program, forward, backward)
        sizes = [self._scale.value(size) for _, size in program.boundary_tensors]
        shape = len(program.boundary_tensors), len(self._scale.micro_batch)
        return BlockCosts(
            program=program,
            forward=forward,
            recomputation=again,
            backward=backward,
            saved_bytes=saved_bytes,
            boundary_bytes=np.array(sizes).reshape(shape) * rates.element_bytes,
            shared=_added([ahead.shared, back.shared]),
            tier2_saved_bytes=None if tier2 is None else tier2.sum(axis=0),
            tier2_traffic_bytes=None if tier2 is None else ahead.tier2_bytes + back.tier2_bytes,
        )

    def _pass(
        self,
        program: BlockProgram,
        read: tuple[Rates, Software],
        phases: Sequence[tuple[Instruction, ...]],
        moved: Sequence[Mapping[int, Floats]],
        *,
        launches: float = 1.0,
    ) -> _CostedPass:
        """Return the costs of phases that the host launches one after another."""
        # What is read where it is stored depends on all that the program saves.
        of_all = () if self._rates.expanded is None else (id(program),)
        key = (read[1].casts, *of_all, *map(id, phases))
        if key not in self._known:
            self._known[key] = program, self._costed(program, read, phases, moved, launches)
        return self._known[key][1]

    def _costed(
        self,
        program: BlockProgram,
        read: tuple[Rates, Software],
        phases: Sequence[tuple[Instruction, ...]],
        moved: Sequence[Mapping[int, Floats]],
        launches: float,
    ) -> _CostedPass:
        scale, (rates, software) = self._scale, read
        whole = np.ones(1) if rates.expanded is None else stored_whole(program, scale)
        found = [
            phase_costs(
                instructions, scale, self._placement, rates, software, kept=kept, whole=whole
            )
            for instructions, kept in zip(phases, moved, strict=True)
        ]
        costs = tuple(each for each, _ in found)
        return _CostedPass(
            phases=costs,
            shared=stretch_to_host(costs, rates, scale, launches=launches),
            tier2_bytes=reduce(np.add, [tier2 for _, tier2 in found]),
        )


def _around_loss(
    program: BlockProgram, forward: PhaseCosts, backward: PhaseCosts
) -> tuple[PhaseCosts, PhaseCosts]:
    """Return costs with temporary logits at the loss's backward, as their gradient.

    What the loss keeps of logits includes them in forward. There, casts are cached that backward
    does without; elsewhere the two moments have the rest in common, and forward stands for both.
    """
    found = [each for each in program.saved if each.kind == "logits" and each.producer >= 0]
    losses = {i.path: at for at, i in reversed(list(enumerate(backward.instructions)))}
    if not found or not program.backward or found[0].consumer not in losses:
        return forward, backward
    ahead, back = forward.transient_bytes.copy(), backward.transient_bytes.copy()
    for tensor in found:
        back[losses[tensor.consumer]] += ahead[tensor.producer]
        ahead[tensor.producer] = 0.0
    return replace(forward, transient_bytes=ahead), replace(backward, transient_bytes=back)


class _CostedPass(NamedTuple):
    """Costs of phases, queueing terms of a shared device, and bytes in expanded memory."""

    phases: tuple[PhaseCosts, ...]
    shared: SharedWork | None
    tier2_bytes: Floats


def _added(parts: Sequence[SharedWork | None]) -> SharedWork | None:
    found = [part for part in parts if part is not None]
    return reduce(SharedWork.plus, found) if found else None


def _saved_bytes(program: BlockProgram, scale: Scale, rates: Rates, software: Software) -> Floats:
    rows = np.zeros((len(program.saved), len(scale.micro_batch)))
    quantized = frozenset[str]()
    if rates.quantized and software.saves_quantized:
        instructions = (
            instruction
            for instruction in program.forward
            if isinstance(instruction, ComputeInstruction)
        )
        quantized = frozenset(
            instruction.path for instruction in instructions if is_quantized(instruction, rates)
        )
    left_out = _left_out(rates, software)
    for index, tensor in enumerate(program.saved):
        width: Floats | float = rates.element_bytes
        if tensor.kind == "logits":
            is_split = scale.degree(tensor.vocabulary_axes) > 1
            whole, part = (
                software.logit_bytes(split=split, width_bytes=rates.element_bytes)
                for split in (False, True)
            )
            width = np.where(is_split, part, whole)
            width = width + np.where(scale.several, software.earlier_logit_bytes, 0.0)
        elif tensor.kind in {"scores", "sink_scores"}:
            width = _score_bytes(tensor.kind, rates, software)
        elif tensor.kind == "repeats":
            masked = 0 < tensor.from_sequence <= scale.sequence
            repeats = software.runs_steps and (masked or not software.fused_attention)
            width *= repeats or software.reads_mask(window=masked)
        elif tensor.kind in left_out:
            width = 0.0
        elif tensor.mask_bytes > 0:
            width = tensor.mask_bytes
        elif software.weighs_activations and _is_weighed(tensor):
            width = 0.0
        elif quantized:
            width = _quantized_width(tensor.savers, quantized, rates)
        rows[index] = scale.value(tensor.size) * width
    return rows


def _is_weighed(tensor: SavedTensor) -> bool:
    """Return whether a tensor is what experts made, saved for the sum over those of a token."""
    return _EXPERTS in tensor.name and tensor.consumer.rpartition(".")[2] == _WEIGHING


def _score_bytes(kind: str, rates: Rates, software: Software) -> float:
    """Return the bytes of a score that attention keeps: softmax, dropout mask and result.

    With sinks, softmax has the width of the scores, its result is a view of it, nothing is dropped.
    """
    if software.fused_attention:
        return 0.0
    if kind == "sink_scores":
        is_cast = software.autocast and rates.element_bytes < _FULL_BYTES
        return rates.element_bytes + (_FULL_BYTES if is_cast else 0.0)
    # Softmax of autocast, and of most of the transformers library's models, is in fp32; else 2 + 1
    # + 2 bytes in 16 bits (Korthikanti 2022, eq. 1).
    is_cast = software.written_out and software.casts_softmax
    is_wide = is_cast or (software.autocast and (software.written_out or software.library_kernels))
    softmax = max(rates.element_bytes, _FULL_BYTES if is_wide else 0.0)
    drops = software.drops_scores or not software.written_out
    # Without dropout, softmax's result is what values are weighted by, unless that is narrower.
    result = rates.element_bytes if drops or softmax > rates.element_bytes else 0.0
    # `tanh` of attn_logit_softcapping, whose result has the width of the scores.
    capped = rates.element_bytes * (software.written_out and software.caps_scores)
    return softmax + drops + result + capped


def _left_out(rates: Rates, software: Software) -> frozenset[str]:
    """Return the kinds of tensors that the software does not make.

    `steps`: of modules written out, `fused_steps` of those with fused attention; `casts`,
    `weight_casts`: of fp32 parameters, `uncast` without them; `compiled_widths`: of sums in fp32;
    `widths`: of norms that stay in fp32, `stream_widths` where the residual stream is not;
    `clamps`: of gates whose kernel does not clamp, and `clamped_steps` of those without kernels;
    `caps`: of logits that no compiler or fused loss caps; `stored_inputs`: of frozen weights of 4
    bits.
    """
    autocasts = software.casts and rates.element_bytes < software.parameter_bytes
    casts = autocasts and not software.compiled
    by_inductor = autocasts and software.by_inductor
    runs = software.runs_steps
    clamps = runs or software.gates_in_steps
    narrow = runs and rates.element_bytes < _FULL_BYTES
    kinds = {
        "steps": runs,
        "fused_steps": runs and software.fused_attention,
        "clamps": clamps or not (software.fuses_variants or software.moe_fused_experts),
        "clamped_steps": clamps,
        "caps": not (software.compiled or software.fused_loss),
        "stored_inputs": software.stored_inputs,
        _CASTS: casts,
        _WEIGHT_CASTS: (casts or by_inductor) and not software.wide_norms,
        "compiled_widths": by_inductor,
        "uncast": not casts,
        "widths": narrow,
        "stream_widths": narrow and not casts,
    }
    return frozenset(kind for kind, is_made in kinds.items() if not is_made)


def by_read_width(
    program: BlockProgram, rates: Rates, software: Software
) -> tuple[Rates, Software]:
    """Return rates and software of a block by the width of the parameters that its matmuls read.

    Without casts where that is 16 bits anyway. Grouped products of these wait for no host, and
    experts for no gathering where their parameters are whole.
    """
    if reads_narrow(program, software):
        rates, software = (
            replace(rates, casts=False),
            replace(software, parameter_bytes=_NARROW_BYTES),
        )
    if rates.grouped_product_rate and not software.casts:
        rates = replace(rates, moe_host_s=0.0)
    if rates.expert_fetch_s and not any(group.parameter_axes for group in program.parameters):
        rates = replace(rates, expert_fetch_s=0.0)  # ZeRO-1 and 2 gather none
    return rates, software


def reads_narrow(program: BlockProgram, software: Software) -> bool:
    """Return whether software that casts has none to cast: most that matmuls read is of 16 bits.

    FSDP gathers 16 bits of fp32 shards; frozen parameters may be stored as 16 bits.
    """
    groups = program.parameters
    if not software.casts:
        return False
    if software.gather_bytes <= _NARROW_BYTES and any(group.parameter_axes for group in groups):
        return True
    if any(group.stored_bytes for group in groups):
        # Autocast leaves these alone: what layers pass on is as wide as their norms and the table.
        width = software.stored_bytes(trainable=False, gathered=False, quantized=0.0)
        return width <= _NARROW_BYTES and not software.wide_norms
    of_width = {True: 0.0, False: 0.0}
    for group in groups:
        width = software.stored_bytes(trainable=group.trainable, gathered=False, quantized=0.0)
        of_width[width <= _NARROW_BYTES] += group.elements.coefficient
    return of_width[True] > of_width[False]


def _quantized_width(savers: Sequence[str], quantized: frozenset[str], rates: Rates) -> float:
    """Return the bytes per saved element for matmuls at 8 or 4 bits, and for all others."""
    casts = rates.quantized_bytes if quantized.intersection(savers) else 0.0
    return casts + (0.0 if savers and quantized.issuperset(savers) else rates.element_bytes)
