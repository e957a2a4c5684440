"""Training for real: what ranks do together, against loops over one dense model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.distributed.ranks import run_ranks
from tests.distributed.train_cases import check_resumed
from tests.distributed.train_jobs import (
    BATCH,
    DEPTH,
    GHOSTS,
    JOBS,
    RATE,
    STEPS,
    WIDTH,
)
from wattree.runtime.data import Wanted, WantedKind, sample_set
from wattree.runtime.data.loader import batch_samples
from wattree.runtime.models.linears import normal_block
from wattree.runtime.shards import peers_of

CASES = "tests/distributed/train_cases.py"
#: Jobs whose projections of attention are phantom layers: all of them, or some.
NAMED = ("all", "shared", "qkvo", "q", "o")


#: Of which both ranks' products are counted.
COUNTED = ("attending-phantom", *(f"attending-{named}" for named in NAMED))


@pytest.fixture(scope="module")
def trained(together: Mapping[str, Any]) -> Any:
    """What came of all jobs; both ranks go through them one after the other."""
    return together["train_jobs"]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two ranks did, one thing after the other: processes take long to start."""
    folder = tmp_path_factory.mktemp("trained")
    calls = {
        "train_jobs": {"jobs": JOBS},
        "product_flop": {"jobs": {name: JOBS[name] for name in COUNTED}},
    }
    found: dict[str, Any] = run_ranks(
        2, f"{CASES}:several", {"folder": str(folder), "calls": calls}, start=False
    )[0]
    return found


@pytest.mark.parametrize("kind", ["ddp", "zero3", "tensor", "phantom"])
def test_forward_passes_alone_compute_what_they_compute_in_training(
    trained: Any, kind: str
) -> None:
    """The losses of a model that stays as it is, without what gradients send."""
    forward, still = trained[f"forward-{kind}"], trained[f"still-{kind}"]

    assert forward["losses"] == pytest.approx(still["losses"], rel=1e-6)
    assert forward["steps"] == STEPS
    assert {"forward", "backward"} & set(forward["trace_names"]) == {"forward"}
    if kind == "ddp":  # replicas exchange gradients alone
        assert forward["sent_bytes"] == 0
    if kind == "phantom":  # the gradients of ghosts go back as the ghosts came
        assert forward["sent_bytes"] == still["sent_bytes"] / 2


def _weights(name: str, rows: tuple[int, int], columns: tuple[int, int], std: float) -> Any:
    return normal_block(seed=0, name=name, rows=rows, columns=columns, std=std)


def _dense_losses(weight_of: Callable[[int], Any], parameters: list[Any]) -> list[float]:
    """Train a stack of whole matrices by plain SGD."""
    wanted = Wanted(kind=WantedKind.VECTORS, width=WIDTH, outputs=WIDTH, batch=BATCH)
    samples = sample_set("synthetic-regression", wanted, seed=0)
    assert samples.targets is not None
    losses = []
    for step in range(STEPS):
        chosen = torch.from_numpy(
            batch_samples(step=step, batch=BATCH, samples=samples.samples, seed=0)
        )
        x = samples.inputs[0][chosen].double()
        for number in range(DEPTH):
            x = x @ weight_of(number).t() + parameters[number]
            x = x.tanh() if number < DEPTH - 1 else x
        loss = (x - samples.targets[chosen].double()).square().mean()
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(RATE * gradient)
    return losses


def _biases() -> list[Any]:
    return [torch.zeros(WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(DEPTH)]


def _leaf(tensor: Any) -> Any:
    return tensor.double().requires_grad_()


def _plain_reference() -> list[float]:
    whole = (0, WIDTH)
    weights = [_leaf(_weights(f"layers.{n}", whole, whole, WIDTH**-0.5)) for n in range(DEPTH)]
    return _dense_losses(lambda number: weights[number], [*_biases(), *weights])


def _phantom_reference(variant: str, ghosts: int) -> list[float]:
    """The same stack with `W_ji = D_ji C_i` off the diagonal, as one dense matrix each."""
    m, k = WIDTH // 2, ghosts
    std = WIDTH**-0.5
    own: dict[tuple[int, int], Any] = {}
    low: dict[tuple[int, int], tuple[Any, Any]] = {}
    for n in range(DEPTH):
        for rank in range(2):
            shard = (rank * m, rank * m + m)
            own[n, rank] = _leaf(_weights(f"layers.{n}", shard, shard, std))
            if not k:
                continue
            c = _weights(f"layers.{n}.compressor.{rank}", (0, k), (0, m), m**-0.5)
            source = "all" if variant == "shared" else str(peers_of(rank, 2)[0])
            d = _weights(
                f"layers.{n}.decompressor.{rank}.{source}", (0, m), (0, k), std * (m / k) ** 0.5
            )
            low[n, rank] = (_leaf(c), _leaf(d))

    def weight(n: int) -> Any:
        def block(j: int, i: int) -> Any:
            if i == j:
                return own[n, j]
            return low[n, j][1] @ low[n, i][0] if k else torch.zeros(m, m, dtype=torch.float64)

        return torch.cat([torch.cat([block(j, i) for i in range(2)], dim=1) for j in range(2)])

    leaves = [*own.values(), *(each for pair in low.values() for each in pair)]
    return _dense_losses(weight, [*_biases(), *leaves])


@pytest.mark.parametrize("name", ["ddp", "accumulated", "tensor", "megatron"])
def test_strategies_of_one_function_train_as_one_dense_model(
    trained: Mapping[str, Any], name: str
) -> None:
    """Whatever the ranks share, the losses are those of plain SGD on whole matrices."""
    assert trained[name]["losses"] == pytest.approx(_plain_reference(), rel=2e-6)


@pytest.mark.parametrize(
    ("name", "variant", "ghosts"),
    [("phantom", "pair", GHOSTS), ("shared", "shared", GHOSTS), ("block", "pair", 0)],
)
def test_phantom_layers_train_as_their_dense_matrices_do(
    trained: Mapping[str, Any], name: str, variant: str, ghosts: int
) -> None:
    """Gradients of blocks, compressors and decompressors are those of the assembled matrix."""
    assert trained[name]["losses"] == pytest.approx(_phantom_reference(variant, ghosts), rel=2e-6)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("classes-tensor", "classes-ddp"),
        ("decoder-tensor", "decoder-ddp"),
        ("decoder-megatron", "decoder-ddp"),
        ("own-tensor", "own-ddp"),
        ("attending-tensor", "attending-ddp"),
    ],
)
def test_losses_do_not_depend_on_who_holds_what(
    trained: Mapping[str, Any], name: str, reference: str
) -> None:
    """Logits that are cut, vocabularies, positions: the same function from the same start."""
    assert trained[name]["losses"] == pytest.approx(trained[reference]["losses"], rel=2e-5)
    assert trained[name]["parameters"] == trained[reference]["parameters"]


def test_a_phantom_decoder_begins_and_learns_as_a_dense_one_nearly(
    trained: Mapping[str, Any],
) -> None:
    """It is another function of fewer parameters, whose first loss is about that of chance."""
    phantom, dense = trained["decoder-phantom"], trained["decoder-ddp"]
    assert phantom["losses"][0] == pytest.approx(math.log(30), rel=0.15)
    assert phantom["losses"][-1] < phantom["losses"][0]
    assert phantom["parameters"] < dense["parameters"]


def _phantom_parameters(inputs: int, outputs: int, ghosts: int = GHOSTS) -> int:
    """Of a phantom layer with bias over two ranks, pair: own blocks, ghosts of both sides."""
    own = sum(a * b for a, b in zip(_halves(inputs), _halves(outputs), strict=True))
    return own + ghosts * (inputs + outputs) + outputs


def _halves(width: int) -> tuple[int, int]:
    return (width + 1) // 2, width // 2


@pytest.mark.parametrize(
    ("name", "layers", "others"),
    [
        ("own-phantom", [(24, 25), (25, 24), (24, 5)], 0),
        ("own-named", [(24, 24)], 24 * 25 + 2 * 24),
        ("attending-phantom", [(16, 24), (16, 24), (24, 16)], 2 * 16 + 2 * 17 * 16 + 2 * 17 * 8),
    ],
)
def test_modules_of_users_train_with_phantom_layers(
    trained: Mapping[str, Any], name: str, layers: list[tuple[int, int]], others: int
) -> None:
    """A stack cut unevenly, layers that were named, and feed-forward parts alongside attention."""
    found = trained[name]
    expected = others + sum(_phantom_parameters(*layer) for layer in layers)
    assert found["parameters"] == expected
    assert found["losses"][-1] < found["losses"][0]


def test_parameters_are_those_that_simulations_count(trained: Mapping[str, Any]) -> None:
    """The planned model and the trained one are the same."""
    from tests.distributed.train_cases import _job
    from wattree.cost import load_calibration
    from wattree.predict import setting_of

    for name in ("ddp", "tensor", "decoder-ddp", "decoder-megatron"):
        setting = setting_of(_job(JOBS[name]), load_calibration())
        assert trained[name]["parameters"] == setting.model.parameters


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # DEPTH all-gathers of own parts; one reduce-scatter less, as no one wants the samples'.
        ("tensor", {"all_gather": DEPTH * 12, "reduce_scatter": (DEPTH - 1) * 12}),
        # Ghosts in their place; those of the first layer get their gradient, too.
        ("phantom", {"all_gather": DEPTH * GHOSTS, "reduce_scatter": DEPTH * GHOSTS}),
        ("shared", {"all_reduce": 2 * DEPTH * GHOSTS}),
        # Activations, and compressors alongside them.
        (
            "low-rank",
            {
                "all_gather": DEPTH * 12 * (1 + GHOSTS / BATCH),
                "reduce_scatter": (DEPTH - 1) * 12 + DEPTH * 12 * GHOSTS / BATCH,
            },
        ),
        ("block", {}),
    ],
)
def test_payload_is_that_of_the_formulas(
    trained: Mapping[str, Any], name: str, expected: Mapping[str, int]
) -> None:
    """Elements times batch times four bytes, of one rank to the other."""
    assert trained[name]["sent_by"] == {key: n * BATCH * 4 for key, n in expected.items()}
    assert trained[name]["network_bytes"] == 2 * trained[name]["sent_bytes"]


@pytest.mark.parametrize(
    ("name", "rival"), [("low-rank", "phantom"), ("low-rank-shared", "shared")]
)
def test_the_control_trains_the_function_of_phantom_layers(
    trained: Mapping[str, Any], name: str, rival: str
) -> None:
    """From the same weights to the same losses, whatever ranks send each other."""
    assert trained[name]["losses"] == pytest.approx(trained[rival]["losses"], rel=1e-5)
    assert trained[name]["parameters"] == trained[rival]["parameters"]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, 0) for name in ("ddp", "tensor", "megatron", "phantom", "shared", "low-rank")),
        *((name, 0) for name in ("block", "classes-tensor", "own-ddp", "attending-again")),
        *((f"again-{name}", 0) for name in ("tensor", "megatron", "phantom")),
        *((name, 0) for name in ("attending-tensor", "attending-phantom")),
        *((f"attending-{named}", 0) for named in NAMED),
        # One number more of each position, of what ranks tell each other of the loss.
        *((f"decoder-{name}", 4 * 8 * 16) for name in ("tensor", "phantom", "again")),
        ("plain-megatron", 4 * 8 * 16),
    ],
)
def test_simulations_send_what_is_sent(trained: Mapping[str, Any], name: str, more: int) -> None:
    """To the byte: every kind of strategy, of stacks, modules of users and decoders."""
    from tests.distributed.train_cases import _job
    from wattree.predict import run_of, simulate

    job = _job(JOBS[name])
    prediction = simulate(job)
    run = run_of(job, prediction, steps=1, name=name)
    sent = (run.work.network_bytes or 0.0) / prediction.result.ranks
    assert trained[name]["sent_bytes"] - more == pytest.approx(sent, rel=1e-9)


@pytest.mark.parametrize("name", COUNTED)
def test_named_layers_compute_and_hold_what_simulations_count(
    together: Mapping[str, Any], trained: Mapping[str, Any], name: str
) -> None:
    """FLOP of all products of a rank, forward and backward, and parameters of the whole."""
    from tests.distributed.train_cases import _job
    from wattree.graph import TaskKind
    from wattree.predict import simulate

    prediction = simulate(_job(JOBS[name]))
    graph = prediction.trace.graph
    names = np.array(graph.names)[graph.name_ids]
    attention = np.char.endswith(names, "scaled_dot_product_attention")
    products = (graph.kind == TaskKind.COMPUTE) & ~attention
    assert together["product_flop"][name] == graph.flop[products].sum()
    assert trained[name]["parameters"] == prediction.result.parameters


def test_replicas_send_their_gradients_round_a_ring(trained: Mapping[str, Any]) -> None:
    """2 (n - 1) / n of the gradients' bytes."""
    assert trained["ddp"]["sent_by"] == {"gradients": trained["ddp"]["parameters"] * 4}


def test_stages_add_up_to_the_loop(trained: Mapping[str, Any]) -> None:
    """Materials, computing and communicating are all of the time, in every run."""
    for found in trained.values():
        assert found["stages_s"] == pytest.approx(found["wall_s"], rel=1e-6)


def test_the_trace_shows_each_rank_and_its_layers(trained: Mapping[str, Any]) -> None:
    """Computation by phase, collectives by layer."""
    found = trained["phantom"]
    assert found["trace_classes"] == ["rank 0", "rank 1"]
    names = set(found["trace_names"])
    assert {"forward", "backward", "optimizer", "samples", "layers.0", "layers.2"} <= names
    assert "gradients" in trained["ddp"]["trace_names"]


def test_training_ends_at_its_target(trained: Mapping[str, Any]) -> None:
    """The mean of ten losses is first at or below it after the reported step."""
    found = trained["target"]
    losses, at = found["losses"], found["target_step"]
    assert at is not None
    assert at <= found["steps"] < 400
    assert sum(losses[at - 10 : at]) / 10 <= 0.6
    assert sum(losses[at - 11 : at - 1]) / 10 > 0.6


def test_a_mesh_of_replicas_and_their_parts_trains_as_one_model(tmp_path: Path) -> None:
    """Two replicas of two ranks, also with a sharded optimizer; resumed to the bit."""
    jobs: dict[str, dict[str, Any]] = {
        "phantom": {"strategy": {"preset": "phantom", "tp": 2, "dp": 2, "ghosts": GHOSTS}},
        "tensor": {"strategy": {"preset": "tensor", "tp": 2, "dp": 2, "micro_batch": 2}},
        "megatron": {"strategy": {"preset": "megatron", "tp": 2, "dp": 2}},
    }
    mapping = {"strategy": jobs["megatron"]["strategy"], "optimizer": "adamw"}
    mapping["training"] = {"steps": 9}
    calls = {"train_jobs": {"jobs": jobs}, "resumed": {"mapping": mapping}}
    both = run_ranks(4, f"{CASES}:several", {"folder": str(tmp_path), "calls": calls}, start=False)[
        0
    ]
    check_resumed(both["resumed"])
    found = both["train_jobs"]
    assert found["phantom"]["losses"] == pytest.approx(_phantom_reference("pair", GHOSTS), rel=2e-6)
    for name in ("tensor", "megatron"):
        assert found[name]["losses"] == pytest.approx(_plain_reference(), rel=2e-6)
