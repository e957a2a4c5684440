"""When a run is saved and from where it goes on; what a checkpoint must agree with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist

from wattree.errors import RunError
from wattree.job import Job
from wattree.runtime.recipe import Recipe
from wattree.runtime.train.session import RankSession
from wattree.runtime.train.state import State

_FORMAT = "wattree-checkpoint/1"


def facts_of(job: Job, recipe: Recipe) -> dict[str, Any]:
    """Return what a checkpoint must agree with to be gone on from."""
    source = job.model
    if source.ffn is not None:
        model: Any = {"ffn": asdict(source.ffn)}
    elif source.transformer is not None:
        model = {"transformer": dict(source.transformer)}
    elif source.module is not None:
        model = {"module": source.module.function, "arguments": dict(source.module.arguments)}
    else:
        model = {"name": Path(source.name or "").name}
    samples = job.data.source
    return {
        "format": _FORMAT,
        "model": model,
        "strategy": str(recipe.kind),
        "tp": recipe.tp,
        "dp": recipe.dp,
        "ghosts": recipe.ghosts,
        "layer_ghosts": ", ".join(f"{name}: {k}" for name, k in recipe.layer_ghosts),
        "variant": recipe.variant if recipe.ghosts else "",
        "phantom_layers": ", ".join(recipe.phantom_layers or ()),
        "micro_batches": recipe.micro_batches,
        "global_batch": job.data.global_batch,
        "sequence_length": job.data.sequence_length,
        "source": samples.name or (samples.module.function if samples.module else ""),
        "samples": samples.samples,
        "optimizer": job.optimizer,
        "precision": job.precision,
        "seed": job.training.seed,
    }


class Saving:
    """Writes checkpoints of a run, and reads the last one.

    Args:
        session: This rank.
        state: What is saved.
        folder: Where to; None saves nothing.
        every: Steps between checkpoints.
        facts: What they are of.
    """

    def __init__(
        self,
        session: RankSession,
        state: State,
        *,
        folder: Path | None,
        every: int,
        facts: Mapping[str, Any],
    ) -> None:
        self._session, self._state = session, state
        self._folder, self._every, self._facts = folder, every, dict(facts)
        self._saved: int | None = None

    def is_due(self, step: int) -> bool:
        """Return whether the state after `step` steps is to be saved."""
        return self._folder is not None and step % self._every == 0

    def save(self, step: int, losses: list[float]) -> Path | None:
        """Save the state after `step` steps; a collective call."""
        if self._folder is None or self._saved == step:
            return None
        self._saved = step
        from wattree.runtime.checkpoint import save_checkpoint  # only runs that save load it

        return save_checkpoint(
            self._folder,
            step,
            self._state.tensors(losses),
            self._facts | {"step": step},
            self._session.control,
        )

    def resume(self) -> tuple[int, list[float]]:
        """Read the last checkpoint, if there is one; return its step and the losses up to it.

        Raises:
            RunError: It is of another run, or damaged.
        """
        if self._folder is None:
            return 0, []
        from wattree.runtime.checkpoint import latest_step, load_tensors, read_facts, tensor_shapes

        # Rank 0 decides: another rank may see its folder a moment later.
        found: list[int | None] = [latest_step(self._folder)]
        dist.broadcast_object_list(found, src=0, group=self._session.control)
        step = found[0]
        if step is None:
            return 0, []
        self._check(step, read_facts(self._folder, step))
        into = self._state.wanted(tensor_shapes(self._folder, step))
        load_tensors(self._folder, step, into, self._session.control)
        self._saved = step
        return step, self._state.take(into)

    def _check(self, step: int, there: Mapping[str, Any]) -> None:
        assert self._folder is not None
        theirs, mine = _flat(there), _flat(self._facts)
        problems = [
            f"{key}: the checkpoint has {_shown(theirs.get(key))}, the job {_shown(mine.get(key))}"
            for key in dict.fromkeys((*mine, *theirs))
            if key != "step" and theirs.get(key) != mine.get(key)
        ]
        if problems:
            *others, last = problems
            raise RunError(
                str(self._folder / f"step-{step}"),
                [*others, f"{last}; go on with the job that wrote it, or begin anew: --fresh"],
            )


def _flat(facts: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Return facts by their whole place, as a job writes it: `model.ffn.width`."""
    found: dict[str, Any] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{place}{key}.")
        else:
            found[f"{place}{key}"] = value
    return found


def _shown(value: object) -> str:
    return "nothing" if value is None or value == "" else str(value)
