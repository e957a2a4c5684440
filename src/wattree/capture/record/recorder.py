"""A module and its inputs → a recording: built, run at several sizes, on real values if need be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import nn

from wattree.capture.record.merge import Difference, first_difference, merged
from wattree.capture.record.module import (
    REAL_LIMIT_BYTES,
    build_on_meta,
    build_real,
    make_fake,
    parameter_bytes,
)
from wattree.capture.record.private import (
    DATA_DEPENDENT,
    UNSUPPORTED,
    fake_mode,
    fake_tensor,
    quiet,
)
from wattree.capture.record.refusal import build_refusal, needs_values, run_refusal
from wattree.capture.record.routing import Routing
from wattree.capture.record.run import run_module
from wattree.capture.record.sizes import SizePoint
from wattree.capture.record.tracker import RecordingLimits, TrackedRun, Tracker
from wattree.capture.record.trees import map_tensors
from wattree.capture.recording import Recording
from wattree.errors import ModelError, ValuesNeededError

#: From the first run's batch to the second's: odd, and past the few samples that code may treat
#: apart. Fake tensors cost the same whatever their size.
_BATCH_STEP = 15

#: `(batch, sequence) → (positional arguments, keyword arguments)`; sequence None: the model's own.
Inputs = Callable[[int, int | None], tuple[tuple[Any, ...], Mapping[str, Any]]]


def record(
    build: Callable[[], nn.Module],
    inputs: Inputs,
    *,
    name: str,
    batch: int = 2,
    sequence: int | None = None,
    attention: Literal["fused", "cpu", "math"] = "fused",
    loss: Literal["auto", "none"] = "auto",
    limits: RecordingLimits | None = None,
) -> Recording:
    """Return the recording of a module, without memory for its weights.

    It is run on fake tensors forward and backward at `(batch, sequence)`, and forward with
    another batch and with another sequence length. Where a result depends on values, and the
    module is small enough, it is run on real ones instead, drawn with seed 0; `Recording.how` and
    a warning say so.

    Args:
        build: Makes the module; called on the meta device, and on the CPU if it needs values.
        batch: Samples of the first run, where sizes are exact.
        sequence: Tokens per sample of the first run; None where inputs have no such dim.
        attention: `fused`: scaled dot-product attention and recurrent layers are one operator
            each, whatever their masks and dropout, as on GPUs; `cpu`: what eager PyTorch does on
            a CPU; `math`: likewise, attention decomposed into products and softmax.
        loss: `auto`: backward starts from the result if it is a scalar, or from its entry `loss`;
            `none`: from the sum of all floating-point outputs, as it does where there is neither.

    Raises:
        ModelError: The module cannot be built or run; with operator, module path and what to do.
    """
    recorder = _Recorder(
        build=build, inputs=inputs, name=name, attention=attention, loss=loss, limits=limits
    )
    return recorder.recording(SizePoint(batch=batch, sequence=sequence))


class _Runs(Protocol):
    """Runs the module once at a point: forward, and backward if requested."""

    def __call__(self, at: SizePoint, *, backward: bool = False) -> TrackedRun: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _OtherWork:
    """Why runs at other sequence lengths are of no use.

    Attributes:
        problem: In words.
        with_less: First operators in which a run at a shorter length differs; None if none ran.
    """

    problem: str
    with_less: Difference | None


class _Recorder:
    """One module and how it is run; tries fake tensors first, real ones second."""

    def __init__(
        self,
        *,
        build: Callable[[], nn.Module],
        inputs: Inputs,
        name: str,
        attention: str,
        loss: str,
        limits: RecordingLimits | None,
    ) -> None:
        self.build, self.inputs, self.name = build, inputs, name
        self.attention, self.loss, self.limits = attention, loss, limits or RecordingLimits()
        self.warnings: list[str] = []

    def recording(self, point: SizePoint) -> Recording:
        module = self._module()
        size = parameter_bytes(module)
        mode = fake_mode()
        make_fake(module, mode)

        def run(at: SizePoint, *, backward: bool = False) -> TrackedRun:
            arguments = self._fake_arguments(at, mode)
            return self._run(module, arguments, self.limits, mode, backward=backward)

        try:
            return self._merged(run, point, how="fake tensors")
        except ValuesNeededError as reason:
            if size > REAL_LIMIT_BYTES:
                raise ModelError(
                    f"{reason}; it has {size / 2**30:.1f} GiB of parameters and buffers, "
                    f"and models above {REAL_LIMIT_BYTES / 2**30:.0f} GiB are not run on real ones"
                ) from reason.__cause__
            return self._real(point, str(reason))

    def _module(self) -> nn.Module:
        """Return the built module, on meta or, if building needs values, on the CPU."""
        try:
            module, warnings = build_on_meta(self.build, self.name)
        except ModelError:
            raise
        except _RAISED as error:
            if not needs_values(error):
                raise build_refusal(error, self.name) from error
            module, warnings = self._built_real()
        self.warnings += warnings
        return module

    def _built_real(self) -> tuple[nn.Module, tuple[str, ...]]:
        try:
            return build_real(self.build, self.name)
        except ModelError:
            raise
        except _RAISED as error:
            raise build_refusal(error, self.name) from error

    def _real(self, point: SizePoint, reason: str) -> Recording:
        """Return the recording of runs on real values."""
        module, _ = self._built_real()
        module.to("cpu")
        limits = RecordingLimits(
            seconds=self.limits.seconds,
            operators=self.limits.operators,
            storage_bytes=REAL_LIMIT_BYTES,
        )

        def routed(at: SizePoint, routing: Routing, *, backward: bool = False) -> TrackedRun:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                arguments = self._real_arguments(at)
                return self._run(
                    module, arguments, limits, None, backward=backward, routing=routing
                )

        why = reason.removeprefix(f"model {self.name}: ").split("; ")[0]
        self.warnings.append(
            f"{why}: recorded on random inputs with seed 0, so sizes that depend on values are "
            "those of one draw"
        )

        def run(at: SizePoint, *, backward: bool = False) -> TrackedRun:
            return routed(at, Routing(spread=spread), backward=backward)

        try:
            routed(point, drawn := Routing())
            spread = drawn.spreadable()
            if spread:
                self.warnings.append(drawn.warning())
                point = replace(point, batch=point.batch * drawn.factor())
            return self._merged(run, point, how="real values on the CPU")
        except ModelError as error:
            raise ModelError(f"{error} (values are needed because {why})") from error

    def _run(
        self,
        module: nn.Module,
        arguments: Any,
        limits: RecordingLimits,
        mode: Any,
        *,
        backward: bool,
        routing: Routing | None = None,
    ) -> TrackedRun:
        args, kwargs = arguments
        tracker = Tracker(limits, routing)
        try:
            with mode if mode is not None else nullcontext(), quiet():
                return run_module(
                    module,
                    args,
                    kwargs,
                    tracker=tracker,
                    attention=self.attention,
                    loss=self.loss,
                    backward=backward,
                )
        except _RAISED as error:
            refusal = run_refusal(error, self.name, module, tracker)
            may_run = isinstance(error, (*DATA_DEPENDENT, *UNSUPPORTED)) or needs_values(error)
            if mode is not None and may_run:
                raise ValuesNeededError(str(refusal)) from error
            raise refusal from error

    def _fake_arguments(self, at: SizePoint, mode: Any) -> Any:
        try:
            with torch.device("meta"):
                made = self.inputs(at.batch, at.sequence)
        except ModelError:
            raise
        except _RAISED as error:
            if not needs_values(error):
                raise _inputs_refusal(error, self.name) from error
            made = self._real_arguments(at)
        return map_tensors(made, lambda tensor: fake_tensor(mode, tensor))

    def _real_arguments(self, at: SizePoint) -> Any:
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return map_tensors(self.inputs(at.batch, at.sequence), lambda t: t.cpu())
        except ModelError:
            raise
        except _RAISED as error:
            raise _inputs_refusal(error, self.name) from error

    def _merged(self, run: _Runs, point: SizePoint, *, how: str) -> Recording:
        """Run at several sizes that do the same and merge the runs."""
        first = run(point, backward=True)
        if not first.trained:
            self.warnings.append(
                "no result needs a gradient (no trainable parameter, no_grad, detach, or whole "
                "numbers): forward alone is predicted"
            )
        sequences, warning = self._other_sequence(run, first, point)
        if not sequences and _takes_whole_table(warning):
            # A table of positions read whole is not cut: one length below stands for all.
            assert point.sequence is not None
            shorter = replace(point, sequence=point.sequence // 2)
            again = run(shorter, backward=True)
            if found := self._other_sequence(run, again, shorter)[0]:
                first, point, sequences = again, shorter, found
        if not sequences and warning is not None:
            self.warnings.append(
                f"recorded for a sequence length of {point.sequence} alone, whose dim is not "
                f"named: at others {warning.problem}"
            )
        more = [self._other_batch(run, first, point, is_real=how != "fake tensors"), *sequences]
        if not _grows(first, more[0][0]):
            raise ModelError(
                f"model {self.name}: none of its inputs grows with the batch ({_shapes(first)} at "
                f"{point.batch} samples and at {more[0][1].batch}); let a dim of them be the "
                "batch: torch.randn(batch, 8) in example_inputs(batch), or "
                "'float32[batch, 8]' in 'inputs'"
            )
        runs, points = [first, *(r for r, _ in more)], [point, *(p for _, p in more)]
        return merged(runs, points, name=self.name, how=how, warnings=self.warnings)

    def _other_batch(
        self, run: _Runs, first: TrackedRun, point: SizePoint, *, is_real: bool
    ) -> tuple[TrackedRun, SizePoint]:
        # Twice the batch where sizes are drawn: a bigger step tells their growth from their noise.
        # Otherwise far away and of the other parity, so that branches on the batch show.
        steps = (
            (2 * point.batch, 3 * point.batch)
            if is_real
            else (point.batch + _BATCH_STEP, 2 * point.batch)
        )
        different: Any = None
        for batch in steps:
            at = SizePoint(batch=batch, sequence=point.sequence)
            try:
                other = run(at)
            except ModelError as error:
                raise ModelError(
                    f"{error}; it ran with a batch of {point.batch} and not with one of {batch}: "
                    "take sizes from the inputs' shapes, and let every input grow with the batch"
                ) from error
            found = first_difference(first, other)
            if found is None:
                if different is not None:
                    self.warnings.append(
                        f"{_where(different)} does other work with a batch of {steps[0]} than with "
                        f"{point.batch} and {batch}, from operator {_named(different)} on: it "
                        "branches on the batch, or contracts in an order that depends on it; "
                        f"recorded as with {point.batch}"
                    )
                return other, at
            different = different or found
        advice = "let it do the same for every batch (no loop over samples, no branch on the batch)"
        if is_real:
            advice += (
                "; or it follows values that are drawn at random, as where a part of the model "
                "gets no samples in one draw: write such parts as one operator over all of them "
                "(experts as one tensor with bmm), or let example_inputs give values that occur"
            )
        raise ModelError(
            f"model {self.name}: {_where(different)} does other work with a batch of {steps[0]} "
            f"than with {point.batch}, from operator {_named(different)} on; {advice}"
        )

    def _other_sequence(
        self, run: _Runs, first: TrackedRun, point: SizePoint
    ) -> tuple[list[tuple[TrackedRun, SizePoint]], _OtherWork | None]:
        """Return a run at another sequence length; none, and the reason, if all differ."""
        if point.sequence is None:
            return [], None
        half, others = point.sequence // 2, [point.sequence * 2, point.sequence + 1]
        others = [half, *others] if point.sequence % 2 == 0 else [*others, half]
        problem, different = "", None
        for sequence in filter(None, others):
            at = SizePoint(batch=point.batch, sequence=sequence)
            try:
                other = run(at)
            except ModelError as error:
                problem = problem or str(error).removeprefix(f"model {self.name}: ")
                continue
            found = first_difference(first, other)
            if found is None:
                return [(other, at)], None
            other_work = f"does other work, from operator {_named(found)} on"
            problem = problem or f"{_where(found)} {other_work}"
            different = found if sequence < point.sequence else different
            if len(other.operators) < len(first.operators) and _loops(run, first, point):
                break
        return [], _OtherWork(problem=problem, with_less=different)


def _loops(run: _Runs, first: TrackedRun, point: SizePoint) -> bool:
    """Return whether one step more takes more operators: then no other length does the same."""
    with suppress(ModelError):
        more = run(replace(point, sequence=(point.sequence or 0) + 1))
        return len(more.operators) > len(first.operators)
    return False


def _grows(first: TrackedRun, other: TrackedRun) -> bool:
    """Return whether any input is longer with more samples; without inputs, any tensor."""
    pairs = list(zip(first.tensors, other.tensors, strict=True))
    inputs = [pair for pair in pairs if pair[0].source == "input"]
    return any(one.shape != more.shape for one, more in inputs or pairs)


def _shapes(run: TrackedRun) -> str:
    shown = [f"{t.dtype}{list(t.shape)}" for t in run.tensors if t.source == "input"]
    return ", ".join(shown[:3]) + (", …" if len(shown) > 3 else "") or "it has none"


def _takes_whole_table(other: _OtherWork | None) -> bool:
    """Return whether the first difference is a slice that takes all at the longest length."""
    if other is None or other.with_less is None:
        return False
    whole, part = other.with_less
    return (
        whole is not None
        and part is not None
        and part.target == "aten.slice.Tensor"
        and whole.is_view
        and whole.inputs == part.inputs
    )


def _where(different: Difference) -> str:
    one = different[0] or different[1]
    return f"module '{one.module}'" if one is not None and one.module else "the module"


def _named(different: Difference) -> str:
    one = different[0] or different[1]
    return one.target if one is not None else "the last"


#: What a user's code may end with: `exit()` of a script's options is no end of the command.
_RAISED = (Exception, SystemExit)


def _inputs_refusal(error: BaseException, name: str) -> ModelError:
    text = str(build_refusal(error, name))
    return ModelError(text.replace("its build function raised", "its example inputs raised"))
