"""``python -m tests.fidelity`` prints predictions beside published figures."""

import sys

from tests.fidelity.published import memory_points, table, time_points

sys.stdout.write(table(time_points()) + "\n" + table(memory_points()))
