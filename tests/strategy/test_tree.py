"""Patterns over the module tree: what applies, what wins, what two trees make together."""

from __future__ import annotations

import pytest

from wattree.strategy import ActivationStore, MemoryChoice, StrategyTree, TreeNode


def tree(**compute: str) -> StrategyTree:
    """Return a tree whose nodes split dim `x`; `__` stands for a dot, `any` for a star."""
    return StrategyTree(
        nodes={
            name.replace("__", ".").replace("any", "*").replace("root", ""): TreeNode(
                compute={"x": (axis,)}
            )
            for name, axis in compute.items()
        }
    )


@pytest.mark.parametrize(
    ("pattern", "path", "applies"),
    [
        ("", "layers.0.mlp.up", True),
        ("layers", "layers.0.mlp.up", True),
        ("layers.*", "layers.0.mlp.up", True),
        ("layers.*.mlp.up", "layers.0.mlp.up", True),
        ("layers.*.*norm*", "layers.0.input_norm", True),
        ("layers.*.*norm*", "layers.0.attention.q_norm", False),  # a star is one segment
        ("layers.1", "layers.10.mlp.up", False),
        ("layers.*.mlp.up.weight", "layers.0.mlp.up", False),
        ("mlp", "layers.0.mlp.up", False),
    ],
)
def test_a_pattern_applies_at_and_below_its_place(pattern: str, path: str, applies: bool) -> None:  # noqa: FBT001 (a table of cases)
    """Segment by segment, from the root."""
    found = StrategyTree(nodes={pattern: TreeNode()}).matching(path)

    assert bool(found) is applies


def test_longer_patterns_win_then_those_with_fewer_wildcards() -> None:
    """Nodes inherit from their parents."""
    choices = tree(root="dp", layers__any__mlp="tp", layers__0__mlp="cp", layers="ep").choices

    assert choices("head.logits").compute == {"x": ("dp",)}
    assert choices("layers.0.attention.qkv").compute == {"x": ("ep",)}
    assert choices("layers.1.mlp.up").compute == {"x": ("tp",)}
    assert choices("layers.0.mlp.up").compute == {"x": ("cp",)}


def test_items_are_inherited_one_by_one() -> None:
    """A node that says how activations are kept leaves the rest to its parents."""
    nodes = {
        "": TreeNode(
            compute={"batch": ("dp",)},
            memory=MemoryChoice(optimizer=("dp",), activations=ActivationStore.RECOMPUTE),
        ),
        "layers.*.mlp": TreeNode(
            compute={"out": ("tp",)}, memory=MemoryChoice(activations=ActivationStore.KEEP)
        ),
    }

    found = StrategyTree(nodes=nodes).choices("layers.0.mlp.up")

    assert dict(found.compute) == {"batch": ("dp",), "out": ("tp",)}
    assert (found.optimizer, found.parameters, found.recompute) == (("dp",), (), 0.0)


def test_an_empty_choice_takes_an_inherited_one_back() -> None:
    """Replicated is said with no axes, which is not the same as saying nothing."""
    nodes = {
        "": TreeNode(compute={"batch": ("dp",)}, memory=MemoryChoice(parameters=("dp",))),
        "head": TreeNode(compute={"batch": ()}, memory=MemoryChoice(parameters=())),
    }

    found = StrategyTree(nodes=nodes).choices("head.logits")

    assert (dict(found.compute), found.parameters) == ({"batch": ()}, ())


def test_in_a_merged_tree_the_other_wins_item_by_item() -> None:
    """Presets are laid over one another."""
    ours = StrategyTree(
        nodes={"a": TreeNode(compute={"x": ("dp",)}, memory=MemoryChoice(optimizer=("dp",)))}
    )
    theirs = StrategyTree(
        nodes={"a": TreeNode(compute={"x": ("tp",)}, memory=MemoryChoice(gradients=("dp",)))}
    )

    (node,) = ours.merged(theirs).nodes.values()

    assert dict(node.compute) == {"x": ("tp",)}
    assert node.memory == MemoryChoice(optimizer=("dp",), gradients=("dp",))


def test_patterns_that_reach_below_a_path_are_found_from_it() -> None:
    """Those that stop above it count too; those that go elsewhere do not."""
    patterns = ("", "layers.*.mlp.up", "layers.3", "layers.4", "head", "*.3")
    found = StrategyTree(nodes=dict.fromkeys(patterns, TreeNode())).matching_below("layers.3")

    assert found == ("", "layers.*.mlp.up", "layers.3", "*.3")
