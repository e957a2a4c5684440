"""Time of matmuls: tiles, waves and the roofline. Pure functions over arrays."""

from __future__ import annotations

from functools import cache

import numpy as np

from wattree.arrays import Floats

#: Output tiles of cuBLAS-class kernels with their rate relative to the largest. Products measured
#: on six GPUs take hardly longer by the tile of 128 x 64 than by larger ones (persistent kernels
#: overlap the ends of tiles); of these shapes and rates the error is least
#: (python -m benchmarks.products).
_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 64, 1.0), (64, 64, 0.9))
#: More tiles of products on ordinary units, where few rows do not hide behind memory. At this rate
#: of 32 rows V100, A100 and T4 have the least error on 4 to 32 rows (NeuSight, ASPLOS 2025,
#: published tables; each alone has 0.65 to 0.7). Products of a matrix and a vector read weights
#: from the last cache for each row, about twice as fast as from memory (chosen).
_TILES_OF_CORES = ((32, 128, 0.65), (1, 128, 0.1))
#: Contraction length at which a tile reaches half its rate (same fits; the same for 16 and 8 bit).
_RAMP_K = 165.0
#: Tiles of grouped products on systolic arrays: rows of groups, and either dimension of weights
#: (`wi_tile_fwd_batch_seq`, `wi_tile_fwd_embed_dim` and so on; MaxText, configs/base.yml, 2025-12).
_GROUP_ROWS, _GROUP_SIDE = 512.0, 1024.0
#: Above this many waves the last, partial one is averaged: kernels interleave tiles.
_WAVES_AVERAGED = 8.0


@cache
def _tiles(*, on_cores: bool) -> Floats:
    """Return sizes and rates, with a row for each tile, `(3, tiles, 1)`."""
    return np.array(_TILES + _TILES_OF_CORES * on_cores).T[:, :, None]


def tile_efficiency(  # noqa: PLR0917 - a shape
    m: Floats,
    n: Floats,
    k: Floats,
    groups: Floats,
    compute_units: int,
    split_k: bool = False,  # noqa: FBT001, FBT002 - as `matmul_time_s` has it
    *,
    on_cores: bool = False,
) -> Floats:
    """Return the share of the matrix units' rate that a matmul's shape allows, in (0, 1].

    `max over tiles of r_t * (m n g) / (waves * tile area * units) * k / (k + k0)`: useful work
    over tile-padded work over whole waves of compute units.

    Args:
        m, n, k: Rows, columns, contraction.
        groups: Independent products.
        compute_units: SMs or the like.
        split_k: Tiles that do not fill a wave are cut along the contraction until they do.
        on_cores: Ordinary units compute it, which have smaller tiles.
    """
    tile_m, tile_n, rate = _tiles(on_cores=on_cores)
    useful = rate * (m * n * groups)
    tiles = np.ceil(m / tile_m) * np.ceil(n / tile_n) * groups
    if split_k:
        best = useful / (np.where(tiles > 0.0, tiles, 1.0) * tile_m * tile_n)
    else:
        waves = tiles / compute_units
        whole = np.where(waves <= _WAVES_AVERAGED, np.ceil(waves), waves + 0.5)
        best = useful / (np.maximum(whole, 1.0) * (tile_m * tile_n * compute_units))
    return np.asarray(best.max(axis=0) * k / (k + _RAMP_K))


def array_efficiency(m: Floats, n: Floats, k: Floats, side: int, ragged: int = 0) -> Floats:
    """Return the share of a systolic array's rate that a matmul's shape allows, in (0, 1].

    `n k / ((n, in whole arrays) (k, likewise)) * k / (k + k0)`. Groups of a ragged product begin
    anywhere in tiles; a tile that two of them share is computed for each (`make_group_metadata` in
    JAX's pallas/ops/tpu/megablox/gmm.py), so that a group takes one more than its rows fill.

    Args:
        m, n, k: Rows, columns, contraction. Of a ragged product, rows of a group first.
        side: Rows, and columns, of the array.
        ragged: Cores that divide the rows of a ragged product among them, each with groups of any
            number of rows; 0 where all groups are alike.
    """
    columns, length = (np.ceil(each / side) * side for each in (n, k))
    m = np.where(np.greater(m, 0), m, 1.0)  # no rows have no time, and no share
    useful = m * n * k
    if ragged:
        m = m + _GROUP_ROWS * ragged
        columns, length = (
            np.ceil(each / tile) * tile
            for each, tile in ((each, np.minimum(each, _GROUP_SIDE)) for each in (columns, length))
        )
    return np.asarray(useful / (m * columns * length) * k / (k + _RAMP_K))


def alignment_factor(n: Floats, k: Floats, penalty: float) -> Floats:
    """Return `penalty` where a row is not a whole number of 128-byte lines (64 two-byte values)."""
    return np.where((np.mod(n, 64) != 0) | (np.mod(k, 64) != 0), penalty, 1.0)


def matmul_time_s(
    *,
    m: Floats,
    n: Floats,
    k: Floats,
    groups: Floats,
    flop_per_s: float | Floats,
    compute_units: int,
    traffic_bytes: Floats,
    memory_bytes_per_s: float | Floats,
    alignment_penalty: float = 1.0,
    misaligned: float | Floats = 1.0,
    split_k: bool = False,
    on_cores: bool = False,
    array_side: int = 0,
    ragged: int = 0,
) -> Floats:
    """Return the time of `groups` matmuls of (m x k) by (k x n). [s]

    `max(2 m n k g / (rate * tile efficiency) * alignment, bytes / bandwidth)`.

    Args:
        m, n, k, groups: Shape, arrays of one length.
        flop_per_s: Rate that large, aligned products reach. [FLOP/s]
        compute_units: Units that tiles are spread over.
        traffic_bytes: Operands read and written once. [B]
        memory_bytes_per_s: Bandwidth that streaming reaches. [B/s]
        alignment_penalty: Factor for misaligned rows.
        misaligned: The same of this product, whatever the device.
        split_k, on_cores: As for `tile_efficiency`.
        array_side, ragged: As for `array_efficiency`; 0 where there are tensor cores instead.
    """
    flop = 2.0 * m * n * k * groups
    if array_side:
        rate = flop_per_s * array_efficiency(m, n, k, array_side, ragged)
    else:
        efficiency = tile_efficiency(m, n, k, groups, compute_units, split_k, on_cores=on_cores)
        rate = flop_per_s * efficiency
        misaligned = alignment_factor(n, k, alignment_penalty) * misaligned
    # Experts of a rank that receives no token have no rows, and no rate.
    none = np.zeros(np.broadcast_shapes(np.shape(flop), np.shape(rate)))
    math_s = np.divide(flop, rate, out=none, where=np.greater(flop, 0)) * misaligned
    return np.asarray(np.maximum(math_s, traffic_bytes / memory_bytes_per_s))
