"""What a conversion does to weights, in one process, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.convert_models import encoder, family, stack
from wattree.errors import StrategyError
from wattree.runtime import ConversionRule, conversion_of, phantomize
from wattree.runtime.convert.convert import planned
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


def cut(
    module: Any, plan: Any, ranks: int = 2, ghosts: int = 1, variant: str = "pair"
) -> dict[str, str]:
    """Return why a module cannot be cut."""
    return refusal(planned, module, plan, size=ranks, ghosts=ghosts, variant=variant)


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
    """Each with what is known instead; a converted module is no dense one."""
    module = stack(8, 8, 8)
    as_dict: dict[str, Any] = {"ghosts": 1, "plan": "ffn"}

    assert refusal(phantomize, module, color="red", **as_dict) == {
        "color": "is no option; expected one of overlap, regather"
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
