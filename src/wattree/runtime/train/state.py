"""Model, optimizer and generators as named tensors, which is all that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from wattree.errors import RunError
from wattree.runtime.regions import local_part
from wattree.runtime.train.session import RankSession

if TYPE_CHECKING:
    from wattree.runtime.checkpoint.tensors import TensorShape


class State:
    """The contents of a run's checkpoint on this rank.

    Parts of a model that replicas share have the name of the part, so that one of them writes it;
    what ranks have of their own has the rank's number.

    Args:
        module: The model, not wrapped.
    """

    def __init__(
        self, session: RankSession, module: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self._module, self._optimizer = module, optimizer
        self._rank = session.rank
        recipe = session.recipe
        part, own = f"part{session.place}", f"rank{session.rank}"
        self._model_prefix = f"{own if recipe.is_fully_sharded else part}/model/"
        self._optimizer_prefix = f"{own if recipe.is_fully_sharded else part}/optimizer/"

    def tensors(self, losses: list[float]) -> dict[str, Tensor]:
        """Return all of it, with the losses up to now."""
        found = self._model()
        for name, parameter in self._trained():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if value is not None:
                    kept = local_part(value) if isinstance(value, Tensor) else torch.tensor(value)
                    found[f"{self._optimizer_prefix}{name}/{key}"] = kept
        found |= self._generators()
        found["losses"] = torch.tensor(losses, dtype=torch.float64)
        return found

    def wanted(self, shapes: Mapping[str, TensorShape]) -> dict[str, Tensor]:
        """Return the tensors to read a checkpoint into: the model's own, and room for the rest.

        Raises:
            RunError: It lacks parts of this rank.
        """
        into = self._model()
        missing = [name for name in (*self._generators(), "losses") if name not in shapes]
        if missing:
            raise RunError(
                "checkpoint", [f"rank {self._rank}: has no '{name}'" for name in missing[:5]]
            )
        for name, there in shapes.items():
            is_mine = name.startswith(self._optimizer_prefix)
            if is_mine or name in {"losses", *self._generators()}:
                into[name] = torch.empty(there.shape, dtype=there.dtype)
        return into

    def take(self, tensors: Mapping[str, Tensor]) -> list[float]:
        """Restore optimizer and generators; return the losses up to then."""
        for name, parameter in self._trained():
            prefix = f"{self._optimizer_prefix}{name}/"
            state = {
                key.removeprefix(prefix): value
                for key, value in tensors.items()
                if key.startswith(prefix) and "/" not in key.removeprefix(prefix)
            }
            if state:
                self._optimizer.state[parameter] = {
                    # PyTorch stores the count of steps on the CPU, all else with the parameter.
                    key: value if value.dim() == 0 else _as_sharded(value, parameter)
                    for key, value in state.items()
                }
        torch.set_rng_state(tensors[f"rank{self._rank}/generator"])
        device = tensors.get(f"rank{self._rank}/device_generator")
        if device is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(device)
        losses: list[float] = tensors["losses"].tolist()
        return losses

    def _model(self) -> dict[str, Tensor]:
        state: dict[str, Any] = self._module.state_dict()
        # Each rank writes its own shards, which share memory with what is trained.
        return {f"{self._model_prefix}{name}": local_part(each) for name, each in state.items()}

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        mine = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        for name, parameter in self._module.named_parameters():
            if id(parameter) in mine:
                yield name, parameter

    def _generators(self) -> dict[str, Tensor]:
        found = {f"rank{self._rank}/generator": torch.get_rng_state()}
        if torch.cuda.is_available():
            found[f"rank{self._rank}/device_generator"] = torch.cuda.get_rng_state()
        return found


def _as_sharded(value: Tensor, parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of a state, in the form in which its optimizer stores it."""
    value = value.to(parameter.device)
    if local_part(parameter) is parameter:
        return value
    from torch.distributed.tensor import DTensor

    assert isinstance(parameter, DTensor)
    return DTensor.from_local(
        value,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
