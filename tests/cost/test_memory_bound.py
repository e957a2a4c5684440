"""Passes over operands: every kind has a row with a source, and none moves less than its bytes."""

from __future__ import annotations

import numpy as np
import pytest

from wattree.cost.calibration_file import load_calibration
from wattree.cost.families import software_family
from wattree.cost.memory_bound import (
    BY_FUNCTION,
    BY_KIND,
    IN_CONVOLUTIONS,
    by_channel_s,
    channel_s,
    channels_at_once,
    gathered_bytes,
    passes_of,
)
from wattree.graph import OperatorKind
from wattree.hardware import Precision, load_device

ROWS = {**BY_FUNCTION, **BY_KIND}


@pytest.mark.parametrize("name", sorted(ROWS, key=str))
def test_a_row_moves_each_operand_at_least_once_forward(name: str) -> None:
    """A kernel reads what it is given and writes its result, at no more than the bandwidth."""
    row = ROWS[name]
    assert min(row.inputs, row.outputs, row.backward_inputs, row.backward_outputs) >= 1.0
    assert 0.0 < row.share <= 1.0
    assert 0.0 < row.backward_share <= 1.0
    assert row.source


@pytest.mark.parametrize("name", sorted(IN_CONVOLUTIONS))
def test_what_a_convolution_does_besides_moves_less_than_a_kernel_of_its_own(name: str) -> None:
    """Forward loses passes; backward still reads and writes every operand's gradient."""
    row, alone = IN_CONVOLUTIONS[name], BY_KIND[OperatorKind.BATCH_NORM]

    assert row.inputs < alone.inputs
    assert row.outputs <= alone.outputs
    assert min(row.backward_inputs, row.backward_outputs) >= 1.0
    assert row.backward_inputs + row.backward_outputs < (
        alone.backward_inputs + alone.backward_outputs
    )
    assert row.source


@pytest.mark.parametrize(
    ("kind", "function", "same"),
    [
        (OperatorKind.NORM, "native_layer_norm", "layer_norm"),
        (OperatorKind.NORM, "native_group_norm", "group_norm"),
        (OperatorKind.POOL, "max_pool2d_with_indices", "max_pool"),
        (OperatorKind.POOL, "avg_pool2d", "avg_pool"),
        (OperatorKind.POOL, "_adaptive_avg_pool2d", "avg_pool"),
        (OperatorKind.ELEMENTWISE, "native_dropout", "dropout"),
        (OperatorKind.ELEMENTWISE, "sub", "add"),
    ],
)
def test_names_of_the_library_find_their_row(kind: OperatorKind, function: str, same: str) -> None:
    """Captured operators are called as they were dispatched."""
    assert passes_of(kind, function) is BY_FUNCTION[same]


def test_a_transform_moves_its_data_once_a_dim_and_backward_the_whole_spectrum() -> None:
    """Real numbers have half a spectrum, whose gradient is padded with zeros to a whole one."""
    found = [BY_FUNCTION[f"fft_{each}_3"] for each in ("r2c", "c2r", "c2c")]

    assert [each.over(backward=False)[0] for each in found] == [3.0, 5.0, 3.0]
    assert [each.over(backward=True)[0] for each in found] == [8.0, 4.0, 3.0]


def test_what_has_no_row_goes_by_its_kind() -> None:
    """Unknown functions cost their bytes; products cost none here."""
    assert passes_of(OperatorKind.ELEMENTWISE, "mish") is BY_KIND[OperatorKind.ELEMENTWISE]
    assert passes_of(OperatorKind.MATMUL, "linear") is None


def test_short_rows_move_whole_sectors() -> None:
    """A row of one fp32 value moves 32 bytes; rows of 128 values move themselves."""
    rows = np.array([10.0, 10.0, 10.0])
    assert gathered_bytes(rows, np.array([4.0, 40.0, 512.0])).tolist() == [320.0, 640.0, 5120.0]


@pytest.mark.parametrize(
    ("precision", "channels_last", "family", "device", "own"),
    [
        (Precision.BF16, False, "pytorch", "h200-sxm-141gb", True),
        (Precision.FP8, False, "pytorch", "h200-sxm-141gb", True),  # what stays wider is bf16
        (Precision.FP16, False, "pytorch", "h200-sxm-141gb", False),
        (Precision.TF32, False, "pytorch", "h200-sxm-141gb", False),
        (Precision.BF16, True, "pytorch", "h200-sxm-141gb", False),
        (Precision.BF16, False, "jax", "h200-sxm-141gb", False),
        (Precision.BF16, False, "paddle", "h200-sxm-141gb", False),
        (Precision.BF16, False, "pytorch", "xeon-8480c", False),
    ],
)
def test_pytorch_has_batch_norms_of_its_own_in_bf16(
    *, precision: Precision, channels_last: bool, family: str, device: str, own: bool
) -> None:
    """Where channels come first: cuDNN's kernels take fp16 and fp32."""
    software = software_family(family).with_traits({"channels_last": channels_last})
    found = channel_s(load_device(device), software, precision, load_calibration())

    assert (found > 0) is own


@pytest.mark.parametrize(
    ("device", "of_unit"),
    [
        *(
            ("v100-sxm2-32gb", 4),
            ("a100-sxm-80gb", 4),
            ("b200-sxm-180gb", 4),
            ("b300-sxm-288gb", 4),
        ),
        *(("t4", 2), ("rtx-3090", 3), ("rtx-4090", 3), ("rtx-5090", 3)),
    ],
)
def test_a_unit_has_room_for_as_many_threads_as_its_compute_capability(
    device: str, of_unit: int
) -> None:
    """2,048; 1,024 of 7.5; 1,536 of 8.6, 8.9 and 12.0. Blocks have 512."""
    found = load_device(device)

    assert channels_at_once(found) == of_unit * found.compute_units


@pytest.mark.parametrize("backward", [False, True])
def test_few_channels_leave_most_of_a_device_idle_in_such_a_batch_norm(*, backward: bool) -> None:
    """As many values take as long as those of a channel; many channels are bound by memory."""
    values, time_s = np.full(3, 2.0**26), np.full(3, 1e-3)
    channels = np.array([16.0, 64.0, 2.0**14])
    few, some, many = by_channel_s(
        time_s, values, channels, each_s=1e-9, at_once=4 * 132, backward=backward
    )

    assert few > 2.0 * some > 2.0 * many
    assert many == pytest.approx(1e-3)
