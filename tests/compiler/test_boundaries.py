"""Several tensors at a cut: what is sent, what comes back, and what each stage keeps of it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.jobs import WIDTH, Job
from tests.search.jobs import setting
from tests.sim.reference import reference_events
from wattree.capture import freeze, load_model
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.graph import ExecutionGraph, ModelGraph, Phase, TaskKind
from wattree.lowering.dataflow import chunk_stages, with_boundary_copies
from wattree.lowering.program import BlockProgram
from wattree.lowering.stages import cut_chunks
from wattree.predict import predicted
from wattree.sim import execute
from wattree.strategy import StrategyOptions

MIB = 2.0**20
#: Of a micro-batch of one sample on the first level of a U-Net: 64 channels of 512 x 512.
LEVEL = 64 * 512 * 512 * WIDTH
#: Hidden states of one sample of T5 small, 512 tokens of 512.
HIDDEN = 512 * 512 * WIDTH


@cache
def model_called(name: str) -> ModelGraph:
    """Return a model of the catalog."""
    return load_model(name)


def job_of(
    name: str | ModelGraph, *, global_batch: int = 8, micro_batch: int = 1, **options: object
) -> Job:
    """Return a job of one sample a micro-batch."""
    return Job.of(
        model_called(name) if isinstance(name, str) else name,
        StrategyOptions(micro_batch=micro_batch, **options),  # type: ignore[arg-type]
        global_batch=global_batch,
        sequence=512,
    )


def sent(graph: ExecutionGraph, phase: Phase) -> list[float]:
    """Return what each transfer of one micro-batch sends, by stage. [B]"""
    chosen = (graph.kind == TaskKind.TRANSFER) & (graph.phase == phase) & (graph.micro_batch == 0)
    of_class = [
        int(graph.stream_class[graph.stream_ids[graph.stream_offsets[task]]])
        for task in np.flatnonzero(chosen)
    ]
    sizes = graph.link_traffic_bytes[chosen].tolist()
    return [size for _, size in sorted(zip(of_class, sizes, strict=True))]


def first_program(job: Job, chunk: int) -> BlockProgram:
    """Return the program of the first block of a chunk as stages play it."""
    stages, schedule = job.strategy.mesh.degree("pp"), job.strategy.schedule
    plain = job.program()
    chunks = cut_chunks(plain, stages, schedule)
    program = with_boundary_copies(plain, chunks, chunk_stages(schedule.placed(stages)))
    return program.programs[program.instances[chunks[chunk][0]]]


def transfer(job: Job, chunk: int) -> dict[str, float]:
    """Return the copies that a chunk holds for a micro-batch. [B]"""
    scale = job.scale(job.program())
    return {
        tensor.name.removeprefix("received."): float(scale.value(tensor.size)[0]) * WIDTH
        for tensor in first_program(job, chunk).saved
        if tensor.name.startswith("received.")
    }


def test_an_encoder_is_handed_to_every_stage_of_its_decoder() -> None:
    """Stages of three layers: hidden states, then the encoder's end alongside them."""
    graph = job_of("t5-small", pp=4).compiled().graph

    assert sent(graph, Phase.FORWARD) == pytest.approx([HIDDEN, 2 * HIDDEN, 2 * HIDDEN])
    assert sent(graph, Phase.BACKWARD) == pytest.approx([HIDDEN, 2 * HIDDEN, 2 * HIDDEN])


def test_skips_are_handed_past_the_stages_between() -> None:
    """Four cuts of a U-Net, by hand: each level has a quarter of the positions, twice the channels.

    Behind `down.0` to `down.2` and a pooling: levels 0 and 1, and a quarter of level 2's half.
    Behind `down.4`: levels 0 to 2, and both halves of level 3. Behind `up.2`: level 0 and both
    halves of level 1.
    """
    graph = job_of("u-net", pp=4).compiled().graph
    expected = [
        LEVEL * (1 + 1 / 2 + 1 / 8),
        LEVEL * (1 + 1 / 2 + 1 / 4 + 1 / 4),
        LEVEL * (1 + 1),
    ]

    assert sent(graph, Phase.FORWARD) == pytest.approx(expected)
    assert sent(graph, Phase.BACKWARD) == pytest.approx(expected)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_every_micro_batch_crosses_with_all_its_tensors(micro_batches: int) -> None:
    """Gradient accumulation changes how often, not how much at once."""
    graph = job_of("u-net", pp=2, global_batch=2 * micro_batches, micro_batch=2).compiled().graph
    transfers = graph.kind == TaskKind.TRANSFER

    assert transfers.sum() == 2 * micro_batches
    assert graph.link_traffic_bytes[transfers] == pytest.approx(2 * LEVEL * 2)


def test_a_frozen_encoder_gets_no_gradient() -> None:
    """Only the decoder's hidden state has one to send back, once something before is trained."""
    model = freeze(model_called("t5-small"), ["embedding.*", "encoder.*"])
    graph = job_of(model, pp=4).compiled().graph

    assert sent(graph, Phase.FORWARD)[1:] == pytest.approx([2 * HIDDEN, 2 * HIDDEN])
    assert sent(graph, Phase.BACKWARD) == pytest.approx([HIDDEN])


def test_what_is_carried_stays_as_it_was_made() -> None:
    """Sequence parallelism hands on shards of the encoder's end, as of hidden states."""
    graph = job_of("t5-small", pp=2, tp=4, sequence_parallel=True).compiled().graph
    shares = sent(graph, Phase.FORWARD)

    assert shares == pytest.approx([2 * HIDDEN / 4] * len(shares))


def test_a_stage_keeps_copies_of_what_it_is_not_the_first_to_save() -> None:
    """Of a U-Net cut behind `down.4`, the skips; its cat is taken first, and no one's copy."""
    assert transfer(job_of("u-net", pp=2), 1) == pytest.approx(
        {"down.0.5": LEVEL, "down.1.5": LEVEL / 2, "down.2.5": LEVEL / 4}
    )


def test_what_all_layers_read_is_kept_once_a_stage() -> None:
    """The third stage has the decoder's first layer, which saves the encoder's end itself."""
    job = job_of("t5-small", pp=4)
    saved = [t.name for p in job.program().programs for t in p.saved if t.name == "encoded"]

    assert saved == ["encoded"]  # of the first decoder layer alone
    assert transfer(job, 2) == {}
    assert transfer(job, 3) == pytest.approx({"encoder.final.final_norm": HIDDEN})


def test_a_chain_hands_on_and_keeps_what_it_did() -> None:
    """One tensor at each cut is kept by the block that saves it, and no copy is made."""
    job = job_of("gpt2", pp=4)

    assert [transfer(job, chunk) for chunk in (1, 2, 3)] == [{}, {}, {}]
    assert sent(job.compiled().graph, Phase.FORWARD) == pytest.approx([512 * 768 * WIDTH] * 3)


def test_the_turn_of_a_v_is_no_copy() -> None:
    """Both of its chunks lie on one device."""
    job = job_of("u-net", pp=2, schedule="zb-v")

    assert transfer(job, 2) == {}
    assert transfer(job, 1)
    assert transfer(job, 3)


SCHEDULES = {
    "1f1b": {"pp": 4},
    "gpipe": {"pp": 2, "schedule": "gpipe"},
    "interleaved": {"pp": 2, "schedule": "interleaved", "virtual_stages": 2},
    "zb-h1": {"pp": 4, "schedule": "zb-h1"},
    "zb-v": {"pp": 2, "schedule": "zb-v"},
    "dualpipe": {"pp": 2, "schedule": "dualpipe"},
    "recomputed": {"pp": 4, "recompute": "full"},
    "replicas": {"pp": 2, "dp": 2, "sharding": "zero3"},
}


@pytest.mark.parametrize("name", ["t5-small", "u-net"])
@pytest.mark.parametrize("case", SCHEDULES)
def test_all_that_is_taken_is_given_back(case: str, name: str) -> None:
    """Copies of what is carried past included; folded or not, by both executors."""
    job = job_of(name, **SCHEDULES[case])  # type: ignore[arg-type]
    graph, whole = (job.compiled(fold=fold, detail=False).graph for fold in (True, False))
    trace = execute(graph)

    left = graph.alloc_bytes.sum() - graph.free_bytes.sum()
    assert abs(left) <= 1e-6 * graph.alloc_bytes.sum()
    assert trace.makespan_s == pytest.approx(execute(whole).makespan_s, rel=1e-9)
    assert trace.makespan_s == pytest.approx(reference_events(graph)[0].makespan_s, rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_cut_anywhere_sends_what_lies_open_there(data: st.DataObject) -> None:
    """Against a count by names: made before, read at or after."""
    name = data.draw(st.sampled_from(["u-net", "t5-small"]))
    model = model_called(name)
    before = data.draw(st.integers(1, model.layers - 1))
    job = job_of(name, pp=2, stage_layers=(before, model.layers - before))
    start = cut_chunks(job.program(), 2, job.strategy.schedule)[1][0]

    open_ends: dict[str, float] = {}
    for number, instance in enumerate(model.instances):
        block = model.blocks[instance.block]
        last = model.instances[number - 1]
        chained = f"{last.path}/{model.blocks[last.block].output}"
        for place, tensor in enumerate(block.inputs):
            maker = instance.reads[place] if instance.reads else chained
            made = [i.path for i in model.instances].index(maker.partition("/")[0])
            if made < start <= number:
                lengths = [e.value(micro_batch=1, sequence=512) for e in tensor.extents]
                open_ends[maker] = float(np.prod(lengths)) * WIDTH

    assert sent(job.compiled().graph, Phase.FORWARD) == pytest.approx([sum(open_ends.values())])


@pytest.mark.parametrize("name", ["t5-small", "u-net", "densenet-121"])
@pytest.mark.parametrize("stages", [2, 4])
def test_the_closed_form_knows_what_crosses_and_what_is_kept(name: str, stages: int) -> None:
    """As far off as without stages, and to the byte in memory."""
    job = setting(model=name, batch=16)
    options = StrategyOptions(pp=stages, dp=8 // stages, micro_batch=1)

    executed = predicted(job, options, detail=False)
    screened = estimate(job, options, Degrees.of([options], 16))

    assert screened.step_time_s[0] == pytest.approx(executed.result.step_time_s, rel=0.03)
    assert screened.tensor_bytes[0] == pytest.approx(executed.peak.tensors, rel=1e-6)
