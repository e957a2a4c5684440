"""When a run is saved and where it continues; the settings that a checkpoint must match."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from wattree.dotted import dotted
from wattree.errors import RunError
from wattree.job import Job
from wattree.runtime.recipe import Recipe
from wattree.runtime.train.session import RankSession
from wattree.runtime.train.state import State

if TYPE_CHECKING:
    from wattree.job.module import ModuleSource
    from wattree.runtime.checkpoint.resume import Resumed


#: What a recipe says besides the options of its strategy.
_OF_RECIPE = (
    *("micro_batches", "sequence_parallel", "ghosts", "overlap", "expert_over_tensor"),
    *("processes_per_device", "learning_rate_scale", "backward"),
)


def facts_of(job: Job, recipe: Recipe) -> dict[str, Any]:
    """Return the settings that a checkpoint must match to continue: all that change the result.

    Not how many steps there are, nor the loss at which training ends: more of the same.
    """
    source = job.model
    if source.ffn is not None:
        model: Any = {"ffn": asdict(source.ffn)}
    elif source.transformer is not None:
        model = {"transformer": dict(source.transformer)}
    elif source.module is not None:
        model = _named(source.module)
    else:
        model = {"name": Path(source.name or "").name}
    samples = job.data.source
    phantoms = recipe.options.phantoms
    return {
        "model": model,
        "strategy": str(recipe.kind),
        **_facts_of_recipe(recipe),
        "variant": phantoms.variant if recipe.ghosts else "",
        "phantom_layers": ", ".join(phantoms.layers or ()),
        "global_batch": job.data.global_batch,
        "sequence_length": job.data.sequence_length,
        "source": samples.name or (_named(samples.module) if samples.module else ""),
        "samples": samples.samples,
        "optimizer": job.optimizer,
        "learning_rate": job.training.learning_rate,
        "precision": job.precision,
        "seed": job.training.seed,
    }


def _facts_of_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return how a strategy is run, without newer options at their defaults (old checkpoints)."""
    options = recipe.options
    keys = ["dp", "tp", "ep", "micro_batch", "regather"]
    keys += [axis for axis in ("fsdp", "cp", "pp") if options.value(axis) > 1]
    keys += ["context", "context_order"] if options.cp > 1 else []
    keys += ["recompute"] if options.memory.recompute != "none" else []
    keys += ["sharding"] if recipe.is_fully_sharded else []
    found = {key: options.value(key) for key in keys}
    found |= {name: getattr(recipe, name) for name in _OF_RECIPE}
    if options.pp > 1:
        found["schedule"] = str(recipe.schedule)
    # As checkpoints of earlier versions say.
    return found | {"sharded_optimizer": False, "layer_ghosts": ""}


def _named(module: ModuleSource) -> dict[str, Any]:
    return {"module": module.function, "arguments": dict(module.arguments)}


class Saving:
    """Writes checkpoints of a run, and reads the last one.

    Attributes:
        notes: What a user must know of the folder; on rank 0.

    Args:
        folder: Where to; None saves nothing.
        every: Steps between checkpoints.
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
        self._check_owner: Callable[[], None] = lambda: None  # until `owned` has one
        self.notes: list[str] = []

    def is_due(self, step: int) -> bool:
        """Return whether the state after `step` steps is to be saved."""
        return self._folder is not None and step % self._every == 0

    def save(self, step: int, losses: list[float]) -> Path | None:
        """Save the state after `step` steps; a collective call."""
        if self._folder is None or self._saved == step:
            return None
        self._saved = step
        from wattree.runtime.checkpoint.tensors import save_checkpoint  # only runs that save

        self._by_first(self._check_owner)

        return save_checkpoint(
            self._folder,
            step,
            self._state.tensors(losses),
            self._facts | {"step": step},
            self._session.control,
        )

    @contextlib.contextmanager
    def owned(self, *, fresh: bool) -> Iterator[None]:
        """Have the folder to this run while the block runs; a collective call.

        Args:
            fresh: Move the checkpoints of the run before aside.

        Raises:
            RunError: Another run has it, or it cannot be written to.
        """
        if self._folder is None:
            yield
            return
        from wattree.runtime.checkpoint.owner import PATIENCE_S, FolderOwner

        # The other ranks wait for the first one, and no longer than for anything else.
        patience_s = min(PATIENCE_S, self._session.group.timeout_s / 2)
        owner = FolderOwner(self._folder, patience_s=patience_s)
        self._by_first(owner.acquire)
        try:
            self._by_first(lambda: self._set_aside(fresh=fresh))
            self._check_owner = owner.check
            yield
        finally:
            if self._session.rank == 0:
                owner.release()

    def resume(self) -> tuple[int, list[float]]:
        """Read the newest checkpoint that is whole; return its step and the losses up to it.

        Zero steps where there is none at all. Newer ones that are damaged are moved aside.

        Raises:
            RunError: It is of another run, or all are damaged.
        """
        if self._folder is None:
            return 0, []
        from wattree.runtime.checkpoint.resume import newest_whole
        from wattree.runtime.checkpoint.tensors import load_tensors, tensor_shapes

        found = newest_whole(self._folder, self._session.control)
        if found is None:
            return 0, []
        self._check(found.step, found.facts)
        into = self._state.wanted(tensor_shapes(self._folder, found.step))
        load_tensors(self._folder, found.step, into, self._session.control)
        self._by_first(lambda: self._move_damaged(found))
        self._saved = found.step
        return found.step, self._state.take(into)

    def _set_aside(self, *, fresh: bool) -> None:
        from wattree.runtime.checkpoint.folder import ask_fresh, set_run_aside

        assert self._folder is not None
        if fresh:
            ask_fresh(self._folder)
        aside = set_run_aside(self._folder)
        if aside is not None:
            self.notes.append(f"moved the checkpoints of the run before to {aside}")

    def _move_damaged(self, found: Resumed) -> None:
        from wattree.runtime.checkpoint.folder import set_damaged_aside

        assert self._folder is not None
        set_damaged_aside(self._folder, list(found.damaged))
        self.notes += [
            f"warning: {self._folder / f'step-{step}'} is damaged ({fault}); it was moved to "
            f"damaged-step-{step}, and the run continues from step {found.step}"
            for step, fault in found.damaged.items()
        ]

    def _by_first(self, act: Callable[[], None]) -> None:
        """Let rank 0 do something; its errors are raised on all ranks.

        Raises:
            RunError: Something did.
        """
        wrong: list[tuple[str, tuple[str, ...]] | None] = [None]
        if self._session.rank == 0:
            try:
                act()
            except RunError as error:
                wrong = [(error.source, error.problems)]
            except OSError as error:
                wrong = [(str(self._folder), (f"cannot be written to ({error.strerror})",))]
        dist.broadcast_object_list(wrong, src=0, group=self._session.control)
        if wrong[0] is not None:
            raise RunError(*wrong[0])

    def _check(self, step: int, there: Mapping[str, Any]) -> None:
        assert self._folder is not None
        theirs, mine = dict(dotted(there)), dict(dotted(json.loads(json.dumps(self._facts))))
        problems = [
            f"{key}: the checkpoint has {_shown(theirs.get(key))}, the job {_shown(mine.get(key))}"
            for key in dict.fromkeys((*mine, *theirs))
            if key != "step" and theirs.get(key) != mine.get(key)
        ]
        if problems:
            *others, last = problems
            raise RunError(
                str(self._folder / f"step-{step}"),
                [
                    *others,
                    f"{last}; go on with the job that wrote it, or start over, which moves its "
                    "checkpoints aside: --fresh",
                ],
            )


def _shown(value: object) -> str:
    return "nothing" if value is None or value == "" else str(value)
