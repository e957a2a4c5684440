"""What a conversion does to weights, in one process, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.convert_models import encoder, family, stack
from wattree.errors import OutputError, RunError, StrategyError
from wattree.runtime import (
    ConversionRule,
    conversion_of,
    load_shards,
    phantomize,
    read_shards,
    split_model,
    write_shards,
)
from wattree.runtime.convert import put_shard
from wattree.runtime.convert.factor import pair_factors, shared_factors
from wattree.runtime.shards import shard_offsets, shard_widths

nn = torch.nn


def off_diagonal(weight: Any, rows: tuple[int, ...], columns: tuple[int, ...]) -> Any:
    """Return a weight without its diagonal blocks."""
    found = weight.clone()
    a, b = shard_offsets(rows), shard_offsets(columns)
    for rank in range(len(rows)):
        found[a[rank] : a[rank + 1], b[rank] : b[rank + 1]] = 0
    return found


def refusal(call: Any, *args: Any, **as_dict: Any) -> dict[str, str]:
    """Return what a call says is wrong."""
    with pytest.raises(StrategyError) as caught:
        call(*args, **as_dict)
    return caught.value.misfits


sizes = st.integers(2, 5)


@settings(max_examples=25, deadline=None)
@given(size=sizes, inputs=st.integers(5, 17), outputs=st.integers(5, 17), data=st.data())
def test_pair_factors_miss_what_the_singular_values_beyond_k_hold(
    size: int, inputs: int, outputs: int, data: st.DataObject
) -> None:
    """Of each source's stacked blocks: no factors of that rank miss less (Eckart and Young)."""
    widths = shard_widths(outputs, size), shard_widths(inputs, size)
    ghosts = data.draw(st.integers(0, min(widths[1])))
    seed = data.draw(st.integers(0, 99))
    weight = torch.randn(
        outputs, inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    whole, columns = off_diagonal(weight, *widths), shard_offsets(widths[1])
    for source in range(size):
        block = whole[:, columns[source] : columns[source + 1]]
        c, d = pair_factors(weight, source, widths, ghosts)
        beyond = torch.linalg.svdvals(block)[ghosts:].square().sum()

        assert float((block - d @ c).square().sum()) == pytest.approx(float(beyond), abs=1e-10)
        assert torch.allclose(c @ c.t(), torch.eye(ghosts, dtype=torch.float64))


@settings(max_examples=15, deadline=None)
@given(size=sizes, width=st.integers(8, 16), ghosts=st.integers(1, 2), seed=st.integers(0, 99))
def test_shared_factors_miss_no_less_than_pairs_and_no_more_than_where_they_began(
    size: int, width: int, ghosts: int, seed: int
) -> None:
    """Pairs bound them from below; with two ranks both are the same function."""
    widths = (shard_widths(width, size),) * 2
    if ghosts > min(widths[1]):
        return
    weight = torch.randn(
        width, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    whole = off_diagonal(weight, *widths)
    pairs = sum(
        (off_diagonal(d @ torch.nn.functional.pad(c, (a, width - b)), *widths))
        for a, b, (c, d) in zip(
            shard_offsets(widths[1]),
            shard_offsets(widths[1])[1:],
            (pair_factors(weight, source, widths, ghosts) for source in range(size)),
            strict=False,
        )
    )
    c, d = shared_factors(weight, widths, ghosts)
    shared = off_diagonal(torch.cat(d) @ torch.cat(c, dim=1), *widths)
    left, values, right = torch.linalg.svd(whole)
    begun = off_diagonal(left[:, :ghosts] * values[:ghosts] @ right[:ghosts], *widths)
    missed = [float((whole - each).norm()) for each in (pairs, shared, begun)]

    assert missed[0] <= missed[1] * (1 + 1e-9)
    assert missed[1] <= missed[2] * (1 + 1e-6)
    if size == 2:
        assert missed[1] == pytest.approx(missed[0])


@pytest.mark.parametrize("variant", ["pair", "shared"])
def test_a_layer_that_is_phantom_already_is_found_exactly(variant: str) -> None:
    """Off-diagonal blocks of rank k, of either variant: nothing is lost."""
    original = stack(12, 12, 12)
    known = split_model(original, ranks=3, ghosts=2, plan="ffn", variant=variant)
    original.load_state_dict(known.dense())
    again = split_model(original, ranks=3, ghosts=2, plan="ffn", variant=variant)

    assert max(layer.off_diagonal_error for layer in again.conversion.layers) < 1e-4
    assert max(layer.off_diagonal_error for layer in known.conversion.layers) > 0.1


def test_as_many_ghosts_as_features_lose_nothing_and_none_leave_the_diagonal() -> None:
    """With k = m a layer can be any dense one; with k = 0 all off the diagonal is missed."""
    original = stack(12, 12, 12)
    full, none = (split_model(original, ranks=3, ghosts=k, plan="ffn") for k in (4, 0))

    assert max(layer.error for layer in full.conversion.layers) < 1e-12
    assert [layer.off_diagonal_error for layer in none.conversion.layers] == [1, 1]
    for name, wanted in original.state_dict().items():
        assert torch.allclose(full.dense()[name], wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("variant", ["pair", "shared"])
def test_stated_errors_are_those_of_the_exported_weights(variant: str) -> None:
    """Frobenius norms, of the layer and off its diagonal."""
    original = stack(13, 18, 7)
    found = split_model(original, ranks=3, ghosts=2, plan="ffn", variant=variant)
    state = found.dense()
    for layer in found.conversion.layers:
        wanted = original.state_dict()[f"{layer.cut.name}.weight"]
        missing = wanted - state[f"{layer.cut.name}.weight"]
        outside = off_diagonal(wanted, layer.cut.out_widths, layer.cut.in_widths)

        assert layer.error == pytest.approx(float(missing.norm() / wanted.norm()))
        assert layer.off_diagonal_error == pytest.approx(float(missing.norm() / outside.norm()))


@pytest.mark.parametrize("variant", ["pair", "shared"])
def test_calibration_weighs_errors_with_what_layers_read(variant: str) -> None:
    """Inputs of few directions: outputs are far nearer than without, as stated."""
    original = stack(16, 16, 16)
    stream = torch.Generator().manual_seed(1)
    mixed = torch.randn(16, 16, generator=stream).double() * 0.7 ** torch.arange(16)
    inputs = torch.randn(2000, 16, generator=stream).double() @ mixed.t() + 0.5
    as_dict: dict[str, Any] = {"ranks": 4, "ghosts": 2, "plan": "ffn", "variant": variant}
    plain, weighted = (
        split_model(original, **as_dict),
        split_model(original, calibration=[inputs[:1500], (inputs[1500:],)], **as_dict),
    )
    missed = []
    for each in (plain, weighted):
        layer = nn.Linear(16, 16).double()
        state = each.dense()
        layer.load_state_dict({"weight": state["0.weight"], "bias": state["0.bias"]})
        with torch.no_grad():
            wanted = original[0](inputs)
            missed.append(float((layer(inputs) - wanted).norm()))
    centered = float((wanted - wanted.mean(0)).norm())

    assert missed[1] < missed[0] / 2
    assert weighted.conversion.layers[0].weighted_error == pytest.approx(missed[1] / centered)


@settings(max_examples=15, deadline=None)
@given(
    each=st.integers(1, 3),
    size=st.integers(1, 3),
    block=st.integers(2, 4),
    variant=st.sampled_from(["pair", "shared"]),
)
def test_merging_keeps_the_dense_equivalent(each: int, size: int, block: int, variant: str) -> None:
    """Any number of ranks to any divisor of it."""
    ranks = each * size
    width = ranks * block
    found = split_model(
        stack(width, width, width), ranks=ranks, ghosts=1, plan="ffn", variant=variant
    )
    before, after = found.dense(), found.merged(size).dense()

    assert all(torch.allclose(before[key], after[key], atol=1e-13, rtol=0) for key in before)


def test_fused_projections_merge_part_by_part() -> None:
    """Queries, keys and values of merged ranks lie together again."""
    pytest.importorskip("transformers")
    original = family("gpt2")
    found = split_model(original, ranks=4, ghosts=2, plan="all")
    merged, other = found.merged(2), family("gpt2")
    other.load_state_dict(found.dense())
    exact = split_model(other, ranks=2, ghosts=8, plan="all")
    name = "model.transformer.h.0.attn.c_attn"
    for rank in range(2):
        ours, theirs = (each.states[rank][name] for each in (merged, exact))
        assert torch.allclose(ours["weight"], theirs["weight"])
        assert torch.allclose(ours["bias"], theirs["bias"])
    assert merged.conversion.layers[0].cut.ghosts == 4


def test_merges_that_do_not_fit_are_refused_by_layer() -> None:
    """Ranks that do not divide, and uneven shards that no even ones are made of."""
    found = split_model(stack(10, 12), ranks=4, ghosts=1, plan={"0": "shard -> shard"})

    assert refusal(found.merged, 3) == {"0.size": "4 ranks cannot be merged to 3; give a divisor"}
    assert refusal(found.merged, 2) == {
        "0.in_features": "shards (3, 3, 2, 2) merge to (6, 4), but 2 ranks have (5, 5); merge to "
        "another number of ranks, or to 1"
    }


def test_shards_are_written_whole_and_read_back(tmp_path: Path) -> None:
    """One process writes the files that ranks load; damaged and missing files are reported."""
    original = stack(12, 12, 6)
    found = split_model(original, ranks=1, ghosts=2, plan="ffn")
    folder = write_shards(found, tmp_path / "a" / "one")
    read = read_shards(folder)
    module = load_shards(stack(12, 12, 6, seed=4), folder)
    x = torch.ones(2, 12, dtype=torch.float64)

    assert read.conversion == found.conversion
    assert torch.equal(module(x), original(x))
    with pytest.raises(OutputError, match="one: exists already"):
        write_shards(found, folder)
    (folder / "rank-00000.pt").write_bytes(b"torn")
    with pytest.raises(RunError, match=r"rank-00000.pt: cannot be read"):
        read_shards(folder)
    (folder / "shards.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(RunError, match="found format other, expected wattree-shards-1"):
        read_shards(folder)
    with pytest.raises(RunError, match=r"holds no shards.json"):
        read_shards(tmp_path)


def test_shards_of_others_are_refused() -> None:
    """Another number of ranks, another model: nothing is changed."""
    found = split_model(stack(12, 12, 6), ranks=2, ghosts=2, plan="ffn")
    other = stack(12, 10)

    assert refusal(put_shard, other, found) == {
        "0": "is 10 x 12 in the module, 12 x 12 in the shards",
        "2": "is in the shards, but not in the module",
        "mesh": "has 1 ranks, but the shards are of 2; merge them first, or start as many ranks",
    }
    assert type(other[0]) is nn.Linear


def test_one_rank_is_the_model_itself() -> None:
    """A conversion that a laptop can try before there are ranks."""
    original, x = stack(12, 12, 6), torch.ones(2, 12, dtype=torch.float64)
    made = phantomize(stack(12, 12, 6), ghosts=2, plan="ffn")

    assert torch.equal(made(x), original(x))
    assert conversion_of(made).table().splitlines()[0].split() == [
        *("layer", "becomes", "shape", "ghosts", "parameters", "error", "off-diagonal")
    ]


class Tied(nn.Module):
    """An embedding whose weight the head shares, with a norm between."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 8, bias=False)
        self.head.weight = self.embedding.weight


def cut(module: Any, plan: Any, ranks: int = 2, ghosts: int = 1, **as_dict: Any) -> dict[str, str]:
    """Return why a module cannot be cut."""
    return refusal(split_model, module, ranks=ranks, ghosts=ghosts, plan=plan, **as_dict)


def test_patterns_have_to_name_linear_layers() -> None:
    """With what there is instead; numbers of layers are folded."""
    assert cut(Tied(), {"decoder.*": "whole -> shard", "n*": "shard -> shard"}) == {
        "plan.decoder.*": "names no module; linear layers are head",
        "plan.n*": "names norm, a LayerNorm, and no linear layer; linear layers are head",
    }
    assert cut(stack(4, 4, 4), {"x": "row"}) == {"plan.x": "names no module; linear layers are *"}
    assert cut(stack(4, 4), {"0": "sideways", "1": "row -> whole"}) == {
        "plan.0": "found 'sideways', expected [phantom] whole|shard -> whole|shard, or one of "
        "column, row, rows, keep",
        "plan.1": "found 'row -> whole', expected [phantom] whole|shard -> whole|shard, or one of "
        "column, row, rows, keep",
    }
    assert cut(stack(4, 4), {}) == {"plan": "is empty; give patterns of linear layers"}


def test_layers_that_cannot_be_replaced_say_why() -> None:
    """Tied, hooked, computed or owned by who reads their weights."""
    hooked = nn.Linear(8, 8)
    hooked.register_forward_hook(lambda *_: None)
    module = nn.ModuleDict(
        {
            "computed": nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
            "hooked": hooked,
            "attention": nn.MultiheadAttention(8, 2),
            "tied": Tied(),
            "other": type("Scaled", (nn.Linear,), {"forward": lambda _, x: x})(8, 8),
        }
    )

    assert cut(module, {"*": "shard -> shard"}) == {
        "attention.out_proj": "belongs to nn.MultiheadAttention, which reads its weight and does "
        "not call it",
        "computed": "has a weight that is computed of others (weight norm, parametrization); "
        "remove it",
        "hooked": "has hooks, which would be lost; remove them, and set them again after "
        "converting",
        "other": "is a Scaled, which computes something else than nn.Linear",
        "tied.head": "shares its weights with tied.embedding; untie them or leave the layer out",
    }


def test_widths_ghosts_and_heads_have_to_fit_the_ranks() -> None:
    """All at once, by layer."""
    assert cut(stack(9, 3), {"0": "shard -> shard"}, ranks=4) == {
        "0": "has 3 outputs, less than the 4 ranks"
    }
    assert cut(stack(9, 9), {"0": "shard -> shard"}, ranks=4, ghosts=3) == {
        "0": "found 3 ghosts, expected 0 to 2, the smallest of its shards (9 over 4 ranks)"
    }
    assert cut(stack(9, 9), {"0": "row"}, variant="both") == {
        "variant": "'both' is none of pair, shared"
    }
    fused = ConversionRule(pattern="0", parts=2)
    assert cut(stack(8, 6), {"0": fused}) == {
        "0": "has 6 outputs, of 2 layers in one; each has to divide over the 2 ranks"
    }
    pytest.importorskip("transformers")
    as_dict = cut(family("llama"), "all", ranks=4)
    assert as_dict["model.model.layers.0.self_attn.k_proj"] == (
        "has 2 heads of 4 features, which 4 ranks cannot share without cutting one"
    )
    assert all(name.endswith(("k_proj", "v_proj")) for name in as_dict)


def test_shipped_plans_refuse_what_they_do_not_know() -> None:
    """By name, by family and by what stands between layers."""
    assert cut(stack(4, 4, 4), "llama") == {
        "plan": "found 'llama', expected ffn, mlp, all, or patterns of layers"
    }
    assert cut(stack(4, 4, 4), "mlp") == {
        "plan": "'mlp' knows no such model; give patterns of its linear layers: 0, 2"
    }
    normed = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(5, 4))
    assert cut(normed, "ffn") == {
        "1": "is a LayerNorm between linear layers, which does not work on shards of features; "
        "give patterns of layers",
        "3": "reads 5 features, but 2 makes 4: no stack",
    }
    as_dict = cut(encoder(), "all")
    assert as_dict["plan"].startswith(
        "'all' does not know the attention of models named like torch"
    )


def test_options_and_second_conversions_are_refused() -> None:
    """Nonlinear ghosts stand for no dense weights; a converted module is none."""
    module = stack(8, 8, 8)
    as_dict: dict[str, Any] = {"ghosts": 1, "plan": "ffn"}

    assert refusal(phantomize, module, ghost_activation="relu", color="red", **as_dict) == {
        "color": "is no option; expected one of overlap, regather, ghost_activation, ghost_bias",
        "ghost_activation": "has no dense equivalent; use from_dense=False",
    }
    assert refusal(phantomize, module, from_dense=False, calibration=[], **as_dict) == {
        "calibration": "is for from_dense=True; initial values are drawn"
    }
    assert refusal(phantomize, module, calibration=[], **as_dict) == {
        "calibration": "never calls 0, 2; give inputs that reach it"
    }
    assert refusal(conversion_of, module) == {"module": "is a Sequential that was not converted"}
    phantomize(module, **as_dict)
    assert refusal(phantomize, module, **as_dict) == {
        "module": "has been converted; export its dense weights first"
    }
