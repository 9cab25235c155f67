"""The search: space, bounds, inner problems and the best-first loop."""
