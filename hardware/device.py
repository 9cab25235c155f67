"""One accelerator: what it computes, stores and keeps for itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hardware.checks import check_fraction, check_not_negative, check_positive, check_whole
from hardware.errors import suggest

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
"""Number formats that a peak rate may be given for."""


BYTE_FIELDS = ("memory", "context_memory", "communicator_memory")
"""Fields of a device in whole bytes."""
RATE_FIELDS = (
    "memory_bandwidth",
    "gemm_latency",
    "gemm_efficiency",
    "memory_efficiency",
    "attention_efficiency",
    "host_link",
)
"""Fields of a device that are one float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator as a training job sees it.

    A matrix product of m, n, k takes ``gemm_latency + max(2 m n k / (peak_flops gemm_efficiency), moved bytes /
    (memory_bandwidth memory_efficiency))``.
    """

    name: str
    """Name in the catalog, or the user's own."""
    memory: int
    """Memory that the driver reports in total [bytes]."""
    memory_bandwidth: float
    """Peak rate of device memory [bytes/s]."""
    peak_flops: Mapping[str, float] = field(hash=False)
    """Peak rate without sparsity by number format, a name of ``PRECISIONS`` [FLOP/s]."""
    gemm_latency: float
    """Time of a matrix product of no size: launch and ramp [s]."""
    gemm_efficiency: float
    """Share of the peak rate that large matrix products reach."""
    memory_efficiency: float
    """Share of the memory rate that bandwidth-bound kernels reach."""
    attention_efficiency: float = 0.5
    """Share of the peak rate that fused attention reaches."""
    context_memory: int
    """Memory of the driver context and libraries of a process [bytes]."""
    communicator_memory: int
    """Memory of the communication library once the job has more than one device [bytes]."""
    host_link: float
    """Payload rate between device and host memory, one direction [bytes/s]."""
    provenance: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    """Source of each figure, by field name."""

    def __post_init__(self) -> None:
        for name in BYTE_FIELDS:
            check_whole(name, getattr(self, name), "bytes")
            check_not_negative(name, getattr(self, name), "bytes")
        check_positive("memory", self.memory, "bytes")
        for name in ("memory_bandwidth", "host_link"):
            check_positive(name, getattr(self, name), "bytes/s")
        check_not_negative("gemm_latency", self.gemm_latency, "s")
        for name in ("gemm_efficiency", "memory_efficiency", "attention_efficiency"):
            check_fraction(name, getattr(self, name))
        self._check_peak_flops()
        if self.runtime_memory(num_devices=2) >= self.memory:
            raise ValueError(f"context_memory + communicator_memory must be below memory {self.memory} bytes")
        object.__setattr__(self, "peak_flops", dict(self.peak_flops))
        object.__setattr__(self, "provenance", dict(self.provenance))

    def _check_peak_flops(self) -> None:
        if not self.peak_flops:
            raise ValueError("peak_flops must name at least one number format")
        for precision, rate in self.peak_flops.items():
            if precision not in PRECISIONS:
                hint = suggest(precision, PRECISIONS)
                raise ValueError(
                    f"peak_flops: unknown number format {precision!r}{hint}; known: {', '.join(PRECISIONS)}"
                )
            check_positive(f"peak_flops[{precision}]", rate, "FLOP/s")

    def peak_flops_per_s(self, precision: str) -> float:
        """Peak rate in a number format [FLOP/s]; a ValueError if the device does not compute in it."""
        if precision not in self.peak_flops:
            raise ValueError(f"{self.name} does not compute in {precision!r}; it does in {', '.join(self.peak_flops)}")
        return self.peak_flops[precision]

    def runtime_memory(self, num_devices: int) -> int:
        """Memory that context and communication library take in a job of so many devices [bytes]."""
        return self.context_memory + (self.communicator_memory if num_devices > 1 else 0)

    def to_json(self) -> dict[str, object]:
        """The device as JSON values in base units."""
        return {
            "name": self.name,
            **{name: getattr(self, name) for name in BYTE_FIELDS},
            **{name: float(getattr(self, name)) for name in RATE_FIELDS},
            "peak_flops": {precision: float(rate) for precision, rate in sorted(self.peak_flops.items())},
            "provenance": dict(sorted(self.provenance.items())),
        }
