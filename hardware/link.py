"""What joins devices."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hardware.checks import check_not_negative, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection between devices of one level, as one device sees it."""

    bandwidth: float
    """Payload rate of one device in one direction [bytes/s]."""
    latency: float
    """Time of an empty message, or of one step of a ring [s]."""
    line_rate: float | None = None
    """Rate that the data sheet prints, one device, one direction [bytes/s]; not used by any cost."""
    provenance: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    """Source of each figure, by field name."""

    def __post_init__(self) -> None:
        check_positive("bandwidth", self.bandwidth, "bytes/s")
        check_not_negative("latency", self.latency, "s")
        if self.line_rate is not None and not self.line_rate >= self.bandwidth:
            raise ValueError(f"line_rate must be at least the payload bandwidth {self.bandwidth}, got {self.line_rate}")
        object.__setattr__(self, "provenance", dict(self.provenance))

    def divided(self, factor: float, reason: str) -> "Link":
        """The share of this link that is left when its rate is divided by ``factor``, for the reason given."""
        check_positive("factor", factor, "(a share)")
        if factor == 1:
            return self
        provenance = dict(self.provenance)
        if "bandwidth" in provenance:
            provenance["bandwidth"] += f"; divided by {factor:g}: {reason}"
        line_rate = None if self.line_rate is None else self.line_rate / factor
        return replace(self, bandwidth=self.bandwidth / factor, line_rate=line_rate, provenance=provenance)

    def to_json(self) -> dict[str, object]:
        """The link as JSON values in base units."""
        return {
            "bandwidth": float(self.bandwidth),
            "latency": float(self.latency),
            "line_rate": None if self.line_rate is None else float(self.line_rate),
            "provenance": dict(sorted(self.provenance.items())),
        }
