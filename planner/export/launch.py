"""A shell script that starts a program on the devices of a host with torchrun."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

_TEMPLATE = """\
#!/usr/bin/env bash
# {note}
# Run on every host, in the order of the network: ranks are numbered host by host, and the plan relies on it.
# Arguments given to this script go to the program after the plan's, so that they win.
set -euo pipefail

DEVICES_PER_HOST="${{DEVICES_PER_HOST:-{devices_per_host}}}"
NUM_HOSTS="${{NUM_HOSTS:-{num_hosts}}}"
HOST_RANK="${{HOST_RANK:-0}}"
MASTER_ADDR="${{MASTER_ADDR:-localhost}}"
MASTER_PORT="${{MASTER_PORT:-29500}}"
PROGRAM="${{PROGRAM:-{program}}}"

if (( NUM_HOSTS * DEVICES_PER_HOST != {num_devices} )); then
  echo "the plan is for {num_devices} devices, got NUM_HOSTS=$NUM_HOSTS x DEVICES_PER_HOST=$DEVICES_PER_HOST" >&2
  exit 2
fi

{exports}

arguments=(
{arguments}
)

exec torchrun --nnodes "$NUM_HOSTS" --nproc-per-node "$DEVICES_PER_HOST" --node-rank "$HOST_RANK" \\
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$PROGRAM" "${{arguments[@]}}" "$@"
"""


def launch_script(
    *,
    arguments: Sequence[tuple[str, ...]],
    environment: Mapping[str, str],
    num_devices: int,
    devices_per_host: int,
    program: str,
    note: str,
) -> str:
    """The script, every value quoted for the shell.

    Parameters
    ----------
    arguments
        Options with their values, one line each.
    environment
        Variables of every process.
    num_devices
        Processes in all; the script refuses other products of hosts and devices.
    devices_per_host
        Default of the devices of a host.
    program
        Default of the script that torchrun starts.
    note
        One line of comment.
    """
    return _TEMPLATE.format(
        note=" ".join(note.split()),
        devices_per_host=devices_per_host,
        num_hosts=-(-num_devices // devices_per_host),
        program=program,
        num_devices=num_devices,
        exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items()),
        arguments="\n".join(f"  {shlex.join(option)}" for option in arguments),
    )
