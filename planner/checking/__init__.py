"""Parts of ``planner.check``: one layer, the ranks, the replay of the schedule, the proof. No part knows the search."""
