"""A model for the training loop: its inputs, its outputs, and its loss."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattree.errors import JobError
from wattree.runtime.data import SampleSet, Wanted
from wattree.runtime.group import Group
from wattree.runtime.models.linears import FeatureLayout
from wattree.runtime.models.vocabulary import IGNORED, vocabulary_loss
from wattree.runtime.parallel.context import ContextShare
from wattree.runtime.parallel.cut import StageLayers
from wattree.runtime.regions import join_parts, own_part


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainable:
    """A rank's part of a model.

    Attributes:
        parts: It, as the modules that a rank has of it: one, but for virtual stages. The first
            part of a model is called with the inputs of samples, others with what comes before.
        cuts: Where they lie in the model; none where it is whole.
        context: Which positions of samples this rank has.
        tied: Names of the parameters that the first and the last part of a model have in common,
            where these are several: that of the first part, that of the last.
        group: The ranks that share it.
        input_layout, output_layout: What a rank is given, and what it returns.
        outputs: Features of the whole output.
        classes: Whether its loss is that of classes; None: of what the targets are.
        place: Key of the job that says so.
    """

    parts: tuple[nn.Module, ...]
    wanted: Wanted
    group: Group
    cuts: tuple[StageLayers, ...] = ()
    context: ContextShare = field(default_factory=ContextShare)
    tied: tuple[str, str] | None = None
    input_layout: FeatureLayout = FeatureLayout.WHOLE
    output_layout: FeatureLayout = FeatureLayout.WHOLE
    outputs: int = 0
    classes: bool | None = None
    place: str = "model"

    @property
    def module(self) -> nn.Module:
        """All of its parts; where there is one, that."""
        return self.parts[0] if len(self.parts) == 1 else nn.ModuleList(self.parts)

    @property
    def has_output(self) -> bool:
        """Whether this rank makes the loss."""
        return not self.cuts or any(cut.is_last for cut in self.cuts)

    def check(self, samples: SampleSet) -> None:
        """Refuse samples that the model has no loss for.

        Raises:
            JobError: There is none.
        """
        if samples.targets is None or self.classes is None:
            return
        if samples.is_classification and not self.classes:
            fix = f"expected {self.place}.loss: cross_entropy, and outputs as many as classes"
            raise JobError("data.source", [f"'{samples.name}' has classes; {fix}"])
        if self.classes and not samples.is_classification:
            raise JobError(
                "data.source",
                [f"'{samples.name}' has values to match, but {self.place}.loss is cross_entropy"],
            )
        if self.classes and samples.targets.dim() == 1:
            most = int(samples.targets.max())
            if most >= self.outputs:
                raise JobError(
                    f"{self.place}.outputs",
                    [f"found {self.outputs}, expected at least {most + 1}, the classes"],
                )

    def mine(
        self, inputs: tuple[Tensor, ...], targets: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Return this rank's part of samples: its positions, its shard of features."""
        if self.context.size > 1:
            inputs = tuple(self.context.own(x) for x in inputs)
            targets = None if targets is None else self.context.own(targets)
        if self.input_layout is FeatureLayout.FEATURES:
            inputs = tuple(own_part(x, self.group).contiguous() for x in inputs)
        is_spread = self.output_layout is FeatureLayout.FEATURES
        if targets is not None and is_spread and targets.is_floating_point():
            targets = own_part(targets, self.group).contiguous()
        return inputs, targets

    def loss(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """Return this rank's part of the mean loss of its replica's samples.

        Parts of ranks whose outputs are spread add up; ranks with whole outputs all have it.

        Args:
            outputs: Of the module; a scalar is a loss already. A user's module may have classes in
                the second dim, as PyTorch has them, or in the last.
            targets: As from `mine`.

        Raises:
            JobError: Targets do not fit the outputs.
        """
        if targets is None or outputs.dim() == 0:
            return outputs
        if targets.is_floating_point():
            total = outputs.numel()
            if self.output_layout is FeatureLayout.FEATURES:
                total = total // outputs.shape[-1] * self.outputs
            return (_precise(outputs) - targets).square().sum() / total
        if self.classes is None:
            outputs = _classes_last(outputs, targets)
        outputs, targets = outputs.flatten(0, -2), targets.flatten()
        if self.output_layout is FeatureLayout.VOCABULARY:
            loss = vocabulary_loss(_precise(outputs), targets, self.group, self.outputs)
            return loss * self._weight(targets)
        if self.output_layout is FeatureLayout.FEATURES:
            outputs = join_parts(outputs, self.group, self.outputs, "loss")
        try:
            return functional.cross_entropy(_precise(outputs), targets)
        except IndexError as error:  # of processors; a device ends with an assertion
            known = outputs.shape[-1]
            raise JobError(
                "data.source",
                [f"targets: {error} Expected classes from 0 to {known - 1}, or {IGNORED} for none"],
            ) from error

    def _weight(self, targets: Tensor) -> Tensor | float:
        """Return the weight of this rank's mean over positions in that over all positions."""
        if self.context.size == 1:
            return 1.0
        return self.context.weight((targets != IGNORED).sum())

    @property
    def share(self) -> float:
        """Return the weight of this rank's loss in the sum over the ranks of its replica."""
        if not self.has_output:
            return 0.0
        is_part = self.output_layout is FeatureLayout.FEATURES and not self.classes
        return 1.0 if is_part else 1.0 / self.group.size


def _classes_last(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return outputs `(N, C, …)` of targets `(N, …)` as `(N, …, C)`; others have classes there."""
    if targets.shape == outputs.shape[:1] + outputs.shape[2:]:
        return outputs.movedim(1, -1)
    if targets.numel() * outputs.shape[-1] != outputs.numel():
        raise JobError(
            "data.source",
            [
                f"found targets of {list(targets.shape)} for outputs of {list(outputs.shape)}; "
                "expected (N, …) for outputs of (N, classes, …) or (N, …, classes)"
            ],
        )
    return outputs


def _precise(x: Tensor) -> Tensor:
    """Return it in float32 at least, in which losses are taken."""
    return x if x.dtype == torch.float64 else x.float()
