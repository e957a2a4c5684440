"""What a recording says: sizes, storages, saved tensors, regions, paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.capture.record.case_modules import Calls, linear, rows, tokens
from wattree.capture.record import record
from wattree.capture.record.sizes import SizePoint, Sizes
from wattree.capture.recording import RecordedOperator, Recording, TensorSource
from wattree.errors import ModelError
from wattree.graph import Extent


def recorded(build: Callable[[], Any], inputs: Any = rows, **keys: Any) -> Recording:
    """Record a module of a batch."""
    return record(build, lambda batch, _: (inputs(batch), {}), name="m", **keys)


def of(recording: Recording, target: str) -> list[RecordedOperator]:
    """Return the operators of a name."""
    return [o for o in recording.operators if o.target == target]


def test_the_path_is_that_of_the_innermost_module() -> None:
    """A message and a strategy need to know where an operator is."""
    recording = recorded(lambda: nn.Sequential(linear(), nn.Sequential(nn.ReLU(), linear())))

    assert [o.module for o in recording.operators if not o.is_view] == ["0", "1.0", "1.1"]
    assert recording.modules["1.1"] == "Linear"


def test_sizes_are_symbolic_in_batch_and_sequence() -> None:
    """`B` and `S` are distinguished by varying one at a time."""
    recording = record(
        lambda: Calls(lambda _, x: x @ x.transpose(1, 2)),
        lambda batch, sequence: (tokens(batch, sequence or 0), {}),
        name="m",
        batch=2,
        sequence=6,
    )
    (product,) = of(recording, "aten.bmm.default")

    assert recording.tensors[product.outputs[0]].extents == (
        Extent(batch=1),
        Extent(seq=1),
        Extent(seq=1),
    )
    assert product.flop == Extent(coefficient=2 * 8, batch=1, seq=2)


def test_a_view_shares_its_storage_and_an_in_place_operator_writes_it() -> None:
    """Storages identify aliases; each write makes a new value in the same one."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        y[:, :4].mul_(2.0)
        return y.relu_()

    recording = recorded(lambda: Calls(forward, a=linear()))
    made = recording.tensors[of(recording, "aten.addmm.default")[0].outputs[0]]
    (view,) = of(recording, "aten.slice.Tensor")[-1:]
    (scaled,), (rectified,) = of(recording, "aten.mul_.Tensor"), of(recording, "aten.relu_.default")

    assert view.is_view
    assert not view.in_place
    assert scaled.in_place
    assert rectified.in_place
    for operator in (view, scaled, rectified):
        assert recording.tensors[operator.outputs[0]].storage == made.storage
    assert recording.outputs == rectified.outputs
    assert rectified.saved == rectified.outputs


def test_saved_tensors_belong_to_the_operator_that_needs_them() -> None:
    """A product keeps its inputs, a rectifier its output, a sum nothing."""
    recording = recorded(lambda: nn.Sequential(linear(), nn.ReLU(), linear()))
    first, second = of(recording, "aten.addmm.default")
    (rectifier,) = of(recording, "aten.relu.default")

    assert [recording.tensors[i].source for i in first.saved] == [TensorSource.INPUT]
    assert rectifier.saved == rectifier.outputs
    assert rectifier.outputs[0] in second.saved


def test_an_argument_names_the_tensor_that_stands_for_it() -> None:
    """Operators are read by their schema: `[x, y]` and a dim, say."""
    recording = recorded(
        lambda: Calls(lambda self, x: torch.cat([self.a(x), x], dim=1), a=linear())
    )
    (operator,) = of(recording, "aten.cat.default")

    assert operator.arguments == {"tensors": [{"tensor": 0}, {"tensor": 1}], "dim": 1}


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_regions_are_numbered(reentrant: bool) -> None:  # noqa: FBT001
    """Their operators keep nothing, their input is kept, their forward is done again."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        for block in (self.b, self.c):
            x = checkpoint(
                lambda y, b=block: torch.relu(b(y)).sin(), self.a(x), use_reentrant=reentrant
            )
        return x

    recording = recorded(lambda: Calls(forward, a=linear(), b=linear(), c=linear()))
    products = of(recording, "aten.addmm.default")

    assert [o.region for o in products] == [None, 0, None, 1]
    assert all(o.region is None or not o.saved for o in of(recording, "aten.sin.default"))
    assert recording.recomputed_flop == Extent(coefficient=2 * 128, batch=1)
    assert [o.weight_gradient_flop.coefficient for o in products] == [128] * 4
    assert [o.input_gradient_flop.coefficient for o in products] == [0, 128, 128, 128]


def test_tied_parameters_are_one_tensor() -> None:
    """The second name points to the first."""
    layer = linear

    def build() -> nn.Module:
        model = nn.Sequential(layer(), layer())
        model[1].weight = model[0].weight
        return model

    recording = recorded(build)

    assert recording.tied == {"1.weight": "0.weight"}
    named = [t.name for t in recording.tensors if t.source is TensorSource.PARAMETER]
    assert named == ["0.weight", "0.bias", "1.bias"]


def test_complex_parameters_count_once_a_value() -> None:
    """8 bytes each, one element."""
    recording = recorded(
        lambda: Calls(
            lambda self, x: (x * self.w).abs(),
            w=nn.Parameter(torch.zeros(8, dtype=torch.complex64)),
        )
    )
    (weight,) = (t for t in recording.tensors if t.source is TensorSource.PARAMETER)

    assert weight.dtype == "complex64"
    assert weight.extents == (Extent(coefficient=8.0),)


@pytest.mark.parametrize(("loss", "is_named"), [("auto", True), ("none", False)])
def test_backward_starts_from_a_scalar_result(loss: Any, is_named: bool) -> None:  # noqa: FBT001
    """Or from the entry `loss` of a mapping; `none` sums everything."""
    recording = recorded(
        lambda: Calls(
            lambda self, x: {"loss": self.a(x).mean(), "y": self.b(x)}, a=linear(), b=linear()
        ),
        loss=loss,
    )
    products = of(recording, "aten.addmm.default")

    assert (recording.loss is not None) == is_named
    assert products[0].weight_gradient_flop.coefficient == 128
    assert bool(products[1].weight_gradient_flop.coefficient) != is_named


def test_one_attention_operator_whatever_its_mask() -> None:
    """Kernels of GPUs keep q, k, v, the mask, the output and sums; never the scores."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        q = self.a(x).view(x.shape[0], -1, 2, 4).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(
            q, q, q, attn_mask=self.bias, dropout_p=0.2
        )

    recording = record(
        lambda: Calls(forward, a=linear(), bias=nn.Parameter(torch.zeros(2, 6, 6))),
        lambda batch, _: (tokens(batch, 6), {}),
        name="m",
    )
    (operator,) = of(recording, "wattree.attention")

    assert len(recording.tensors[operator.outputs[0]].extents) == 4
    assert len(operator.saved) == 4  # q is k and v; mask, output, sums
    assert operator.input_gradient_flop.coefficient == 2 * operator.flop.coefficient


@pytest.mark.parametrize(
    ("query", "key"),
    [((6, 8), (6, 8)), ((3, 2, 6, 8), (3, 2, 6, 8)), ((2, 6, 8), (1, 6, 8))],
    ids=["3-D", "5-D", "broadcast"],
)
def test_attention_without_a_fused_kernel_saves_its_scores(query: Any, key: Any) -> None:
    """PyTorch's fused kernels need four dims and equal heads; the others run as written out."""
    recording = recorded(
        lambda: Calls(
            lambda self, q, k: nn.functional.scaled_dot_product_attention(self.a(q), k, k),
            a=linear(),
        ),
        lambda batch: tuple(torch.randn(batch, *shape) for shape in (query, key)),
    )
    shapes = [recording.tensors[i].extents for o in recording.operators for i in o.saved]
    lead = [Extent(coefficient=size) for size in query[:-2]]

    assert not of(recording, "wattree.attention")
    assert (Extent(batch=1), *lead, *2 * (Extent(coefficient=6),)) in shapes


def test_attention_on_transposed_images_is_written_out() -> None:
    """Fused kernels read head dims whose elements are adjacent: no channels of an image."""
    recording = recorded(
        lambda: Calls(
            lambda self, x: nn.functional.scaled_dot_product_attention(self.a(x).mT, x.mT, x.mT),
            a=linear(),
        ),
        lambda batch: (torch.randn(batch, 2, 6, 8),),
    )

    assert not of(recording, "wattree.attention")


def test_grouped_queries_share_keys() -> None:
    """Scores are counted for every query head."""
    recording = recorded(
        lambda: Calls(
            lambda _, q: nn.functional.scaled_dot_product_attention(
                q, q[:, :2], q[:, :2], enable_gqa=True
            )
        ),
        lambda batch: (torch.randn(batch, 4, 6, 8),),
    )
    (operator,) = of(recording, "wattree.attention")

    assert operator.flop == Extent(coefficient=4 * 2 * 2 * 6 * 6 * 8, batch=1)


def test_a_model_too_large_for_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would take the machine's memory is not tried."""
    monkeypatch.setattr("wattree.capture.record.recorder.REAL_LIMIT_BYTES", 100)

    with pytest.raises(ModelError, match=r"calls aten\.nonzero\.default.*are not run on real ones"):
        recorded(lambda: Calls(lambda self, x: self.a(x)[x.nonzero()[0]], a=linear()))


def test_building_with_values_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build function that reads values is run on the CPU, up to 4 GiB of tensors."""
    monkeypatch.setattr("wattree.capture.record.module.REAL_LIMIT_BYTES", 200)

    def build() -> nn.Module:
        torch.ones(1).item()
        return linear()

    with pytest.raises(ModelError, match=r"needs values, and with values takes more than"):
        recorded(build)


def test_the_random_state_is_left_alone() -> None:
    """Recording on real values draws with seed 0 and puts the caller's state back."""
    torch.manual_seed(7)
    before = torch.random.get_rng_state()

    recorded(lambda: Calls(lambda self, x: self.a(x)[x > 0].sum(), a=linear()))

    assert torch.equal(before, torch.random.get_rng_state())


def test_nothing_of_the_recording_stays_in_torch() -> None:
    """Attention, checkpoints and the fast path of encoders are as they were."""
    recorded(linear)
    q = torch.randn(1, 2, 4, 8, requires_grad=True)

    out = nn.functional.scaled_dot_product_attention(q, q, q)

    assert "attention" not in type(out.grad_fn).__name__.lower() or "wattree" not in repr(
        out.grad_fn
    )
    assert "wrapped" not in torch.utils.checkpoint.CheckpointFunction.forward.__qualname__
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize(
    ("values", "expected", "approximate"),
    [
        ((6.0, 9.0, 6.0), Extent(coefficient=3.0, batch=1), False),
        ((6.0, 6.0, 3.0), Extent(coefficient=0.75, seq=1), False),
        ((6.0, 13.5, 3.0), Extent(coefficient=6 / 32, batch=2, seq=1), False),
        ((9.0, 9.0, 5.0), Extent(coefficient=9 / 8, seq=1), True),
        ((5.0, 5.0, 5.0), Extent(coefficient=5.0), False),
    ],
)
def test_powers_of_batch_and_sequence(
    values: tuple[float, ...],
    expected: Extent,
    approximate: bool,  # noqa: FBT001
) -> None:
    """At batch 2 and sequence 8; with batch 3; with sequence 4. `S + 1` is only near a power."""
    sizes = Sizes(
        points=[
            SizePoint(batch=2, sequence=8),
            SizePoint(batch=3, sequence=8),
            SizePoint(batch=2, sequence=4),
        ]
    )

    assert sizes.extent(*values) == expected
    assert bool(sizes.approximate) == approximate


def test_a_module_without_gradients_says_that_forward_alone_is_predicted() -> None:
    """Frozen by a slip, it would look fast."""

    def frozen() -> nn.Module:
        return linear().requires_grad_(False)

    assert any("no result needs a gradient" in text for text in recorded(frozen).warnings)
    assert recorded(linear).warnings == ()


def test_leaving_the_process_refuses_the_model_alone() -> None:
    """A script's `exit()` does not end the command without a word."""

    def build() -> nn.Module:
        raise SystemExit(2)

    with pytest.raises(ModelError, match="its build function raised SystemExit: 2"):
        recorded(build)
    with pytest.raises(ModelError, match="the module raised: SystemExit"):
        recorded(lambda: Calls(lambda module, x: exit(1)))  # noqa: PLR1722


def test_a_size_that_is_fixed_says_with_which_batch_it_failed() -> None:
    """PyTorch's message alone does not say why it was run with seventeen."""
    with pytest.raises(ModelError, match="ran with a batch of 2 and not with one of 17"):
        recorded(lambda: Calls(lambda module, x: x + torch.zeros(2, *x.shape[1:])))


@pytest.mark.parametrize("is_other", [lambda n: n % 2 == 1, lambda n: n >= 8])
def test_a_branch_on_the_batch_is_told(is_other: Callable[[int], bool]) -> None:
    """One batch in addition to the first is no proof; the second is odd, and not small."""
    found = recorded(
        lambda: Calls(
            lambda self, x: self.a(self.a(x)) if is_other(x.shape[0]) else self.a(x), a=linear()
        )
    )
    (told,) = found.warnings

    assert told.startswith(
        "module 'a' does other work with a batch of 17 than with 2 and 4, from operator "
    )
    assert len(of(found, "aten.addmm.default")) == 1


@pytest.mark.parametrize("length", [7, 8])
def test_a_table_of_positions_read_whole_serves_shorter_sequences(length: int) -> None:
    """At its full length it is no slice; the recording below it has the same sizes."""

    def build() -> nn.Module:
        return Calls(
            lambda self, x: self.a(x + self.table[:, : x.shape[1]]),
            a=linear(),
            table=nn.Parameter(torch.zeros(1, length, 8)),
        )

    def inputs(batch: int, sequence: int | None) -> Any:
        return (torch.randn(batch, sequence or 1, 8),), {}

    found = record(build, inputs, name="m", sequence=length)
    (product,) = of(found, "aten.addmm.default")

    assert (found.sequence, found.warnings) == (length // 2, ())
    assert product.flop == Extent(coefficient=128, batch=1, seq=1)


def test_attention_over_a_sequence_is_no_approximation() -> None:
    """A sum of terms in `S` and `S²` warns only where it is used."""

    def build() -> nn.Module:
        return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def inputs(batch: int, sequence: int | None) -> Any:
        return (torch.randn(batch, sequence or 1, 8),), {}

    assert record(build, inputs, name="m", batch=2, sequence=16).warnings == ()
