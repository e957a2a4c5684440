"""Traces of devices: classes, hidden and exposed communication, clocks, and what cannot be read."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.kineto.traces import device_rank, event, write
from wattree.errors import RunError
from wattree.kineto.op_classes import op_classes
from wattree.kineto.ranks import read_ranks
from wattree.kineto.traced_rank import read_traced_rank
from wattree.learn.measured_steps import measured_ranks


def test_every_instant_of_a_device_has_one_class(tmp_path: Path) -> None:
    """Work first, then what is in flight, then loading; the host has what is left."""
    path = write(tmp_path / "rank0.json.gz", device_rank(), world=1)

    (rank,) = measured_ranks(read_ranks([path]))

    found = {name: round(1e6 * seconds, 3) for name, seconds in rank.classes_s.items()}
    assert found == {
        "products": 400.0,
        "attention": 100.0,
        "elementwise": 50.0,
        "optimizer": 100.0,
        "copies": 0.0,
        "communication": 200.0,
        "waiting": 0.0,
        "data": 60.0,
        "host": 90.0,
    }
    assert rank.hidden_s == pytest.approx(100e-6)
    assert rank.collectives == 1.0
    assert rank.sizes_bytes == 2000.0


def test_waiting_for_a_slow_rank_is_no_communication(tmp_path: Path) -> None:
    """Until the last has begun; clocks that are apart change nothing, and are named."""
    paths = [
        write(tmp_path / "a.json", device_rank(ahead_us=5e6), rank=1),
        write(tmp_path / "b.json", device_rank(late_us=120.0), rank=0),
    ]
    # Three collectives in common set a clock.
    for path, late, ahead, rank in zip(paths, (0.0, 120.0), (5e6, 0.0), (1, 0), strict=True):
        events = device_rank(late_us=late, ahead_us=ahead)
        third = [dict(each, ts=each["ts"] + 2000.0) for each in events[:8]]
        third[0]["name"] = "ProfilerStep#7"
        write(path, [*events, *third], rank=rank)

    traced = read_ranks(paths)
    slow, waiting = measured_ranks(traced)

    assert traced.offsets_s == pytest.approx((0.0, 5.0))
    assert "its clock is 5 s ahead; set by 3 collectives" in traced.notes[0]
    assert traced.late_s() == pytest.approx({0: 3 * 120e-6, 1: 0.0})
    assert slow.classes_s["waiting"] == pytest.approx(0.0, abs=1e-9)
    assert waiting.classes_s["waiting"] == pytest.approx(120e-6)
    assert waiting.classes_s["communication"] == pytest.approx(80e-6)


def test_numbers_of_collectives_match_them_whatever_the_order(tmp_path: Path) -> None:
    """Where a trace has them, nothing is counted."""
    paths = []
    for rank, order in enumerate(((1, 2, 3), (3, 1, 2))):
        events = [event("ProfilerStep#1", "user_annotation", 0.0, 1000.0)]
        events += [
            event(
                "ncclDevKernel_AllGather_RING_LL",
                "kernel",
                100.0 * place,
                50.0,
                tid=20,
                Seq=number,
            )
            for place, number in enumerate(order, start=1)
        ]
        paths.append(write(tmp_path / f"{rank}.json", events, rank=rank))

    matched = read_ranks(paths).matched

    assert len(matched) == 3
    assert all({own.sequence for own in each.values()} == {each[0].sequence} for each in matched)


@pytest.mark.parametrize(
    ("section", "name", "expected"),
    [
        ("kernels", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "products"),
        ("kernels", "Cijk_Ailk_Bljk_BBS_BH_MT128x128x64", "products"),
        ("kernels", "void cudnn::cnn::conv2d_grouped_direct_kernel", "products"),
        ("kernels", "fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "attention"),
        ("kernels", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop", "attention"),
        ("kernels", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "communication"),
        ("kernels", "triton_poi_fused_add_mul_3", "elementwise"),
        ("kernels", "triton_poi_fused_convert_element_type_3", "elementwise"),
        ("kernels", "elementwise_kernel<128, nocast<add<float>>::{lambda(int)#1}>", "elementwise"),
        ("kernels", "multi_tensor_apply_kernel<TensorListMetadata<1>, LpNormFunctor>", "optimizer"),
        ("kernels", "fused_lamb_kernel", "optimizer"),
        ("kernels", "void cudnn::fusion::compute_dot_do_o_specialized<true, 128>", "attention"),
        ("kernels", "void cudnn::fusion::convert_dq_to_16bits<true>", "attention"),
        ("kernels", "elementwise_kernel<8, bfloat16_copy_kernel_cuda>", "elementwise"),
        ("kernels", "elementwise_kernel<direct_copy_kernel_cuda, LoadWithCast>", "elementwise"),
        ("kernels", "elementwise_kernel<4, gpu_kernel_impl<direct_copy_kernel>>", "elementwise"),
        ("kernels", "elementwise_kernel<4, gpu_kernel_impl_nocast<direct_copy_kernel>>", "copies"),
        ("kernels", "Memset (Device)", "elementwise"),
        ("kernels", "Memcpy HtoD (Pinned -> Device)", "copies"),
        ("host_ops", "aten::addmm", "products"),
        ("host_ops", "aten::linear", "host"),
        ("host_ops", "aten::gelu_backward", "elementwise"),
        ("host_ops", "AddmmBackward0", "host"),
        ("host_ops", "c10d::allreduce_", "communication"),
        ("host_ops", "aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("marks", "Optimizer.step#AdamW.step", "optimizer"),
        ("marks", "DistributedDataParallel.forward", None),
    ],
)
def test_names_have_their_classes(section: str, name: str, expected: str | None) -> None:
    """Of the libraries that PyTorch calls."""
    assert op_classes().of(section, name) == expected


def test_kernels_belong_to_the_step_that_launched_them(tmp_path: Path) -> None:
    """The device lags 300 us behind: what it still had to do when the trace began is of no step."""
    events = [event("gemm", "kernel", 0.0, 300.0, tid=7, correlation=1)]
    for step in range(2):
        at, first = 1000.0 * step, 10 * step + 2
        mark = event(f"ProfilerStep#{step}", "user_annotation", at, 1000.0)
        events.append(mark)
        for number, (start, duration) in enumerate(((300.0, 600.0), (1100.0, 200.0))):
            launch, kernel = "cudaLaunchKernel", "gemm"
            events += [
                event(launch, "cuda_runtime", at + 400 * number, 5.0, correlation=first + number),
                event(kernel, "kernel", at + start, duration, tid=7, correlation=first + number),
            ]
    path = write(tmp_path / "a.json", events, world=1)

    (rank,) = read_ranks([path]).ranks
    (measured,) = measured_ranks(read_ranks([path]))

    spans = [(1e6 * begin, 1e6 * end) for begin, end in rank.steps.values()]
    assert spans == [pytest.approx((300.0, 1300.0)), pytest.approx((1300.0, 2300.0))]
    assert measured.classes_s["products"] == pytest.approx(800e-6)
    assert measured.classes_s["host"] == pytest.approx(200e-6)


def test_kernels_of_the_optimizers_step_are_its_own(tmp_path: Path) -> None:
    """A for-loop optimizer has no kernels that its name would tell from a model's."""
    events = [
        event("ProfilerStep#1", "user_annotation", 0.0, 1000.0),
        event("Optimizer.step#SGD.step", "user_annotation", 500.0, 100.0),
    ]
    for number, at in enumerate((100.0, 550.0), start=1):
        shared = {"correlation": number, "External id": 100 + number}
        events += [
            event("aten::add_", "cpu_op", at - 1, 5.0, **{"External id": 100 + number}),
            event("cudaLaunchKernel", "cuda_runtime", at, 2.0, correlation=number),
            event("vectorized_elementwise_kernel", "kernel", at + 100, 50.0, tid=7, **shared),
        ]
    path = write(tmp_path / "a.json", events, world=1)

    (rank,) = measured_ranks(read_ranks([path]))

    for name in ("elementwise", "optimizer"):
        assert rank.classes_s[name] == pytest.approx(50e-6)
        assert rank.kernels[name].count == 1.0
        assert rank.kernels[name].operators == {"aten::add_": pytest.approx(50e-6)}


def _bad(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    """Return what is no trace, each with a part of its message."""
    good = write(tmp_path / "good.json", device_rank())
    packed = write(tmp_path / "packed.json.gz", device_rank())
    files = {
        "cut": (good.read_bytes()[:-900], "it is cut, or was still being written"),
        "packed-cut": (packed.read_bytes()[:-40], "the compressed file is cut or damaged"),
        "binary": (bytes(range(256)) * 9, "is binary, expected a trace"),
        "list": (b"[1, 2]", "found no JSON object: its beginning is cut off"),
        "other": (b'{"a": 1}', "has no key 'traceEvents': it is cut, or no trace"),
        "empty": (b"", "has no key 'traceEvents'"),
        "number": (b'{"schemaVersion": 1, "traceEvents": [3]}', "event 1 is no object"),
        "deep": (b'{"schemaVersion": 1, "traceEvents": [' + b"[" * 99_999, "nested too deep"),
        "version": (b'{"schemaVersion": 9, "traceEvents": []}', "found 9; expected version 1"),
        "no-version": (
            b'{"traceEvents": []}',
            "it is cut, or no trace of torch",
        ),
        "no-steps": (b'{"schemaVersion": 1, "traceEvents": []}', "no step is marked"),
    }
    for name, (content, _) in files.items():
        (tmp_path / name).write_bytes(content)
    return {name: (tmp_path / name, said) for name, (_, said) in files.items()}


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    """With the file and what is wrong with it, never with a defect."""
    for path, said in _bad(tmp_path).values():
        with pytest.raises(RunError) as refused:
            read_traced_rank(path)
        assert str(path) in str(refused.value)
        assert said in str(refused.value)
    with pytest.raises(RunError, match="cannot be read"):
        read_traced_rank(tmp_path / "missing.json")


def test_a_rank_is_late_by_the_time_that_others_wait_for_it(tmp_path: Path) -> None:
    """Few shards are exchanged in a step, and who begins those a little later is chance."""
    paths = []
    for rank, late in enumerate([(2.0, 2.0, 0.0), (0.0, 0.0, 200.0)]):
        events = [
            dict(each, ts=each["ts"] + 2000 * number, name=f"ncclDevKernel_AllReduce_{number}")
            for number, late_us in enumerate(late)
            for each in device_rank(late_us=late_us)[5:6]
        ]
        steps = [event("ProfilerStep#1", "user_annotation", 0.0, 6000.0)]
        paths.append(write(tmp_path / f"{rank}.json", steps + events, rank=rank))

    assert read_ranks(paths).late_s() == pytest.approx({0: 4e-6, 1: 200e-6})


def test_traces_of_different_runs_are_refused(tmp_path: Path) -> None:
    """All that is wrong at once."""
    other = [
        dict(each, name=str(each["name"]).replace("Step#", "Step#9")) for each in device_rank()
    ]
    paths = [
        write(tmp_path / "a.json", device_rank(), rank=0, world=2),
        write(tmp_path / "b.json", other, rank=0, world=4),
    ]

    with pytest.raises(RunError) as refused:
        read_ranks(paths)

    said = str(refused.value)
    assert "rank 0 is in 2 files" in said
    assert "of different runs: of 2, 4 ranks" in said
    assert "no step is in all of them" in said

    paths = []
    for rank, pace in enumerate((1.0, 4.0)):  # no clock makes the ends of collectives the same
        events = [
            dict(each, ts=pace * (each["ts"] + 2000.0 * step), name=f"ProfilerStep#{step}")
            if str(each["name"]).startswith("ProfilerStep")
            else dict(each, ts=pace * (each["ts"] + 2000.0 * step))
            for step in range(4)
            for each in device_rank()[:8]
        ]
        paths.append(write(tmp_path / f"pace{rank}.json", events, rank=rank))
    with pytest.raises(RunError, match=r"pace1\.json: leaves collectives .* of different runs"):
        read_ranks(paths)


def test_a_rank_that_leaves_collectives_late_is_of_the_same_run(tmp_path: Path) -> None:
    """A busy machine delays it after what it waited for; it has begun before the others end."""
    paths = []
    for rank, late_us in enumerate((0.0, 700.0)):
        events = [
            dict(
                each,
                ts=each["ts"] + 2000.0 * turn,
                name=str(each["name"]).replace("#", f"#{turn}"),
                dur=each["dur"] + late_us * turn * str(each["name"]).startswith("nccl"),
            )
            for turn in range(2)
            for each in device_rank()
        ]
        paths.append(write(tmp_path / f"{rank}.json", events, rank=rank, world=2))

    notes = read_ranks(paths).notes

    assert any("as on a busy machine" in note for note in notes)


def test_one_rank_of_several_says_what_is_not_known(tmp_path: Path) -> None:
    """Nothing is guessed of the others."""
    notes = read_ranks([write(tmp_path / "a.json", device_rank(), world=8)]).notes

    assert any("1 of 8 ranks" in note for note in notes)
    assert any("waiting cannot be distinguished" in note for note in notes)


@pytest.mark.parametrize(
    "damage",
    [{"ts": "soon"}, {"ts": None}, {"dur": True}, {"args": None}, {"ph": 3}, {"name": 5}],
)
def test_odd_events_are_left_out(tmp_path: Path, damage: dict[str, Any]) -> None:
    """A field of another type is no reason to lose the rest."""
    odd = event("gemm", "kernel", 10.0, 5.0) | damage
    path = write(tmp_path / "a.json", [*device_rank(), odd], world=1)

    (rank,) = measured_ranks(read_ranks([path]))

    assert rank.classes_s["products"] == pytest.approx(400e-6)


def test_large_traces_are_read_in_pieces(tmp_path: Path) -> None:
    """Memory follows what is kept of the events (24 B each), not the file."""
    path, many = tmp_path / "large.json.gz", 60_000
    kernel = b'{"ph":"X","cat":"kernel","name":"gemm","tid":7,"ts":%d,"dur":1,"args":{"a":"%s"}},'
    step = b'{"ph":"X","cat":"user_annotation","name":"ProfilerStep#1","tid":1,"ts":0,"dur":99}'
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"schemaVersion": 1, "traceEvents": [')
        for number in range(many):
            file.write(kernel % (number, b"x" * 400))
        file.write(step + b"]}")

    tracemalloc.start()
    found = read_traced_rank(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(found.kernels.name) == many
    assert peak < 12e6 < many * 450


def test_memory_of_devices_is_read_where_it_was_recorded(tmp_path: Path) -> None:
    """PyTorch counts that of the host from the begin of the trace alone, so it says nothing."""
    memory = [
        {
            "ph": "i",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "ts": 1.0,
            "args": {"Total Allocated": live, "Device Type": kind},
        }
        for kind, live in ((0, 9e12), (1, 3e9), (1, 5e9), (1, 4e9), (1, "much"))
    ]
    with_memory = write(tmp_path / "rank0.json.gz", [*device_rank(), *memory], world=1)
    without = write(tmp_path / "rank1.json.gz", device_rank(), world=1)

    found = [read_traced_rank(path).peak_bytes for path in (with_memory, without)]
    assert found == [5e9, None]
