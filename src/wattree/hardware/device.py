"""Accelerators and CPUs as datasheets describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from wattree.errors import CostError, HardwareError


class Precision(StrEnum):
    """Number formats of matrix work."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"  # one scale per tensor
    MXFP8 = "mxfp8"  # one scale per block
    NVFP4 = "nvfp4"
    INT8 = "int8"  # of TPUs, as AQT and Qwix train: scales of rows and columns


#: From here on a link to the host is one of chips that share their memory (NVLink-C2C), not PCIe.
_COHERENT_BYTES_PER_S = 200e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, as its datasheet has it.

    Attributes:
        name: Catalog name, such as `h100-sxm-80gb`.
        vendor, kind, architecture: `nvidia`, `gpu`, `hopper`, ….
        memory_bytes: Capacity of device memory. [B]
        memory_bandwidth_bytes_per_s: Its peak bandwidth. [B/s]
        peak_flop_per_s: Dense matrix peak by precision, without sparsity. [FLOP/s]
        vector_flop_per_s: fp32 peak outside the matrix units. [FLOP/s]
        compute_units: SMs, CUs, tensor cores' hosts: units that work is spread over in waves.
        array_side: Rows, and columns, of a systolic array; 0 for matrix units of other kinds.
        cores: Parts that software has as devices of their own, each with samples of its own.
        host_link_bytes_per_s: One direction to the host (PCIe, C2C). [B/s]
        tdp_w: Rated power. A rating, not a measurement. [W]
        idle_w: Power at rest, memory clocked. [W]
        die: Chip that the product is made with, such as `gh100`; products of one die share what
            was measured on one of them. Empty: not known.
        inline_ecc: Error-correcting codes take a sixteenth of its memory, and bandwidth, as GDDR
            needs it; HBM has bits of its own for them.
        sources: Field → where its value comes from.
    """

    name: str
    title: str
    vendor: str
    kind: str
    architecture: str
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    peak_flop_per_s: Mapping[Precision, float]
    vector_flop_per_s: float
    compute_units: int
    host_link_bytes_per_s: float
    tdp_w: float
    idle_w: float
    die: str = ""
    array_side: int = 0
    cores: int = 1
    inline_ecc: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.peak_flop_per_s:
            raise HardwareError(
                {"matrix_peak": f"{self.name} has no rate for any precision, expected one or more"}
            )
        if self.idle_w >= self.tdp_w:
            raise HardwareError(
                {
                    "idle": f"found {self.idle_w:g} W for {self.name}, expected less than its tdp, "
                    f"{self.tdp_w:g} W"
                }
            )

    @property
    def has_coherent_link(self) -> bool:
        """Whether it reads the host's memory as its own (NVLink-C2C), unlike over PCIe."""
        return self.host_link_bytes_per_s >= _COHERENT_BYTES_PER_S

    def matrix_peak_flop_per_s(self, precision: Precision) -> float:
        """Return the dense matrix peak at `precision`. [FLOP/s]

        Block-scaled fp8 falls back to fp8, bf16 and fp16 stand in for each other, GPUs without
        either have the rate of fp32 for them, and TPUs that of bf16 for fp32; nothing else is
        substituted.

        Raises:
            CostError: The device has no such matrix unit.
        """
        found = self.matrix_format(precision)
        if found is None:
            # No job runs in fp64.
            have = ", ".join(sorted({*self.peak_flop_per_s} - {Precision.FP64}))
            raise CostError(f"{self.name} has no {precision} matrix rate; it has {have}")
        return self.peak_flop_per_s[found]

    def matrix_format(self, precision: Precision) -> Precision | None:
        """Return the number format whose matrix peak counts for a precision; None without any."""
        # `cublasGemmEx` multiplies fp16 in fp32 on compute capability 5.0 and above (cuBLAS).
        is_wide = self.kind == "gpu" and self.architecture != "kepler"
        wide = (Precision.FP32,) if is_wide else ()
        fallbacks: dict[Precision, tuple[Precision, ...]] = {
            Precision.MXFP8: (Precision.FP8,),
            Precision.BF16: (Precision.FP16, *wide),
            Precision.FP16: (Precision.BF16, *wide),
            # XLA multiplies fp32 there in one pass of bf16 (`jax.lax.Precision.DEFAULT`).
            Precision.FP32: (Precision.BF16,) if self.kind == "tpu" else (),
            Precision.TF32: (Precision.FP32,),
        }
        candidates = (precision, *fallbacks.get(precision, ()))
        return next((each for each in candidates if each in self.peak_flop_per_s), None)
