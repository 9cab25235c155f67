"""Models that have a name of their own."""

from pathlib import Path

_FOLDER = Path(__file__).parent.parent / "models"


def model_names() -> tuple[str, ...]:
    """Names of the models of the catalog, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def model_path(name: str) -> Path:
    """The config file of a model of the catalog."""
    assert name in model_names(), f"{name} is not in the catalog"
    return _FOLDER / f"{name}.json"
