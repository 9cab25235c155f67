"""Measured rows of a model graph in place of analytic layer costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.graph import Measurement
from planner.layer_costs import Keys, Kind, LayerCosts
from planner.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def with_measurements(
    costs: LayerCosts, rows: Sequence[Measurement], keys: Keys, workload: Workload
) -> tuple[LayerCosts, NDArray[np.bool_]]:
    """The costs with measured rows in place of analytic ones, and which keys have one."""
    known = np.zeros(len(keys.tp), dtype=bool)
    values = {name: np.array(getattr(costs, name)) for name in LayerCosts.__slots__}
    ordered = sorted(rows, key=lambda row: ("none", "selective", "full").index(row.recompute))
    for row in ordered:
        match = _matches(row, keys, workload)
        if not match.any():
            continue
        if row.recompute == "none":
            known |= match
            _put_plain(values, row, match)
        else:
            kind = Kind[row.recompute.upper()]
            plain = values["input_grad"] + values["weight_grad"]
            values["recompute"][kind] = np.where(
                match, np.maximum(0.0, row.backward - plain), values["recompute"][kind]
            )
            _put_memory(values, row, match, kind)
    return LayerCosts(**values), known


def _matches(row: Measurement, keys: Keys, workload: Workload) -> NDArray[np.bool_]:
    if row.seq_len != workload.seq_len:
        return np.zeros(len(keys.tp), dtype=bool)
    match = (keys.tp == row.tp) & (keys.cp == row.cp) & (keys.ep == row.ep) & (keys.etp == row.etp)
    return np.asarray(match & (keys.microbatch_size == row.microbatch_size))


def _put_plain(values: dict[str, Any], row: Measurement, match: NDArray[np.bool_]) -> None:
    """A run without recomputation replaces compute and the layer's own collectives."""
    values["forward"] = np.where(match, row.forward, values["forward"])
    values["input_grad"] = np.where(match, row.backward / 2, values["input_grad"])
    values["weight_grad"] = np.where(match, row.backward / 2, values["weight_grad"])
    for name in ("tp_forward", "tp_backward", "ep_forward", "cp_forward", "cp_backward"):
        values[name] = np.where(match, 0.0, values[name])
    values["recompute"][Kind.FULL] = np.where(match, row.forward, values["recompute"][Kind.FULL])
    _shift_memory(values, row, match)
    _put_memory(values, row, match, Kind.NONE)


def _shift_memory(values: dict[str, Any], row: Measurement, match: NDArray[np.bool_]) -> None:
    """What recomputation frees stays as computed; a layer that recomputes in full holds what was measured once."""
    saved, transient = values["saved"], values["transient"]
    if row.saved is not None:
        more = row.saved - saved[Kind.NONE]
        saved[Kind.SELECTIVE] = np.where(match, np.maximum(0, saved[Kind.SELECTIVE] + more), saved[Kind.SELECTIVE])
        transient[Kind.FULL] = np.where(match, np.maximum(0, transient[Kind.FULL] + more), transient[Kind.FULL])
    if row.peak is not None:
        for kind in (Kind.SELECTIVE, Kind.FULL):
            shifted = np.maximum(0, transient[kind] + row.peak - transient[Kind.NONE])
            transient[kind] = np.where(match, shifted, transient[kind])


def _put_memory(values: dict[str, Any], row: Measurement, match: NDArray[np.bool_], kind: Kind) -> None:
    if row.saved is not None:
        values["saved"][kind] = np.where(match, row.saved, values["saved"][kind])
    if row.peak is not None:
        values["transient"][kind] = np.where(match, row.peak, values["transient"][kind])
