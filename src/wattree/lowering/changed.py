"""Model changes that a strategy implies: the trained function differs from the job's model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wattree.capture import all_frozen
from wattree.graph import ModelGraph
from wattree.lowering.passes.phantom import with_phantoms
from wattree.lowering.passes.shared_heads import fewest_heads, with_shared_heads
from wattree.lowering.passes.widest import with_widest_parts
from wattree.lowering.setting import Setting
from wattree.strategy import Strategy, StrategyTree
from wattree.units import counted


def changed_model(
    model: ModelGraph, tree: StrategyTree, degrees: Mapping[str, int]
) -> tuple[ModelGraph, StrategyTree]:
    """Return the compiled model and its choices: phantom layers, copied heads, equal widths.

    Args:
        degrees: Axis → degree; if empty, parts keep their own widths.

    Raises:
        StrategyError: Layers cannot be what the strategy wants of them.
    """
    changed, tree = with_phantoms(model, tree, degrees)
    if changed is not model and not model.trainable_parameters:
        changed = all_frozen(changed)
    changed = with_shared_heads(changed, tree, degrees)
    return with_widest_parts(changed, tree, degrees), tree


def changed_setting(setting: Setting, strategy: Strategy) -> Setting:
    """Return the setting with the trained model, or the same setting if the function is unchanged.

    Raises:
        StrategyError: Layers cannot be what the strategy wants of them.
    """
    if len(strategy.meshes) > 1:
        return setting  # phantom layers are of one mesh
    degrees = dict(strategy.mesh.axes)
    model, _ = with_phantoms(setting.model, strategy.tree, degrees, counted=True)
    if model is setting.model:
        return setting
    if not setting.model.trainable_parameters:
        model = all_frozen(model)
    return replace(setting, model=model, _known={})


def copied_heads_lines(model: ModelGraph, strategy: Strategy) -> tuple[str, ...]:
    """Return a warning where ranks share key-value heads, in the format of `Job.warnings`."""
    meshes = (dict(mesh.axes) for mesh in strategy.meshes)
    if all(with_shared_heads(model, strategy.tree, degrees) is model for degrees in meshes):
        return ()
    heads = counted(int(fewest_heads(model)), "key-value head")
    return (
        f"strategy.tp: the model has {heads}, fewer than tensor ranks, so ranks hold copies, as in "
        "inference engines and Megatron-Core since 0.16; other software may refuse this",
    )


def changed_line(dense: ModelGraph, trained: ModelGraph) -> str:
    """Return the warning that two models differ, in the format of `Job.warnings`."""
    share = trained.parameters / dense.parameters
    return (
        f"strategy.phantom: trains another function than {dense.name}, with {100 * share:.1f} % of "
        "its parameters; whether it reaches the same loss is not predicted"
    )
