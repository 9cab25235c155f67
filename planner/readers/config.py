"""Values of a Hugging Face config.json, each checked where it is read."""

from dataclasses import dataclass, field

from hardware.errors import quote
from hardware.fields import Section

MAX_LAYERS = 100_000
"""Most layers that are read; far above any model, far below what fills memory."""
MAX_SIZE = 10_000_000
"""Largest dim that is read [elements]."""
MAX_POSITIONS = 1_000_000_000
"""Longest context that is read [tokens]."""
DEFAULT_SEQ_LEN = 8192
"""Longest sequence that is taken for training where the file does not say [tokens]; contexts grow in a later phase."""
SEQ_LEN_KEY = "_planner_seq_len"
"""Our own key: the sequence length that the model is trained with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A config.json; where a value is wrong the problem is noted and a stand-in lets the reading go on.

    A key that is null counts as absent, as it does in transformers.
    """

    section: Section
    """The file's content."""
    wrong: set[str] = field(default_factory=set)
    """Keys with a problem."""

    def size(self, key: str, *, default: int | None = None, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        """A whole number; ``default`` where the key is absent, and required where there is no default."""
        if default is not None and not self.section.has(key):
            return default
        value = self.section.count(key, minimum=minimum, maximum=maximum)
        if value is None:
            self.wrong.add(key)
            return max(minimum, 1)
        return value

    def first_of(self, *keys: str) -> str:
        """The first of several spellings of a key that is there, else the first."""
        return next((key for key in keys if self.section.has(key)), keys[0])

    def optional_size(self, key: str, *, absent: int | None = None, minimum: int = 1) -> int | None:
        """A whole number or ``None`` where the key is null; ``absent`` where it is not there at all."""
        if key not in self.section.mapping:
            return absent
        return self.size(key, minimum=minimum) if self.section.has(key) else None

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self.section.mapping.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.report(f"must be true or false, got {quote(value)}", key)
            return default
        return value

    def probability(self, key: str, *, default: float) -> float:
        """A number from 0 up to 1."""
        if not self.section.has(key):
            return default
        value = self.section.number(key, minimum=0)
        if value is not None and value >= 1:
            self.report(f"must be at least 0 and below 1, got {quote(value)}", key)
        return default if value is None else value

    def text(self, key: str) -> str | None:
        """Text, or ``None`` where the key is absent."""
        return self.section.text(key) if self.section.has(key) else None

    def choices(self, key: str, known: tuple[str, ...], length: int) -> list[str] | None:
        """A list of so many known words, or ``None`` where the key is absent."""
        value = self.section.mapping.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or any(item not in known for item in value):
            self.report(f"must be a list of {' or '.join(known)}, got {quote(value)}", key)
            return None
        if len(value) != length:
            self.report(f"must have one item for each of the {length} layers, got {len(value)}", key)
            return None
        return value

    def layer_numbers(self, key: str, num_layers: int) -> frozenset[int]:
        """A list of layer numbers from 0, empty where the key is absent."""
        value = self.section.mapping.get(key)
        if value is None:
            return frozenset()
        if not isinstance(value, list) or any(isinstance(item, bool) or not isinstance(item, int) for item in value):
            self.report(f"must be a list of layer numbers, got {quote(value)}", key)
            return frozenset()
        beyond = [item for item in value if not 0 <= item < num_layers]
        if beyond:
            self.report(f"names layer {quote(beyond[0])}, but the layers are 0 to {num_layers - 1}", key)
        return frozenset(value)

    def report(self, message: str, key: str) -> None:
        """Note a problem with a key."""
        self.wrong.add(key)
        self.section.report(message, key)

    def head_size(self, hidden_key: str, hidden: int, heads_key: str, heads: int) -> int:
        """Hidden size over heads, which must divide it."""
        if hidden % heads and not self.wrong & {hidden_key, heads_key}:
            self.report(f"must be a multiple of {heads_key}, which is {heads}, got {hidden}", hidden_key)
        return max(hidden // heads, 1)

    def attention_sizes(self, *, default_kv_heads: int | None, default_head_size: int | None = None) -> dict[str, int]:
        """Sizes of the hidden state and of the heads of grouped attention, by dim.

        Parameters
        ----------
        default_kv_heads
            Key and value heads where the key is not there at all; where it is null, or with ``None``, as many as query
            heads.
        default_head_size
            Head size where ``head_dim`` is absent; with ``None`` the hidden size over the heads.
        """
        hidden = self.size("hidden_size")
        heads = self.size("num_attention_heads")
        kv_heads = self.optional_size("num_key_value_heads", absent=default_kv_heads) or heads
        if heads % kv_heads and not self.wrong & {"num_attention_heads", "num_key_value_heads"}:
            self.report(
                f"must be a multiple of num_key_value_heads, which is {kv_heads}, got {heads}", "num_attention_heads"
            )
        head_size = self.optional_size("head_dim") or default_head_size
        if head_size is None:
            head_size = self.head_size("hidden_size", hidden, "num_attention_heads", heads)
        return {"hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_size": head_size}

    def check_choices(self, choices_key: str, choices: int, experts_key: str, experts: int) -> None:
        """A token cannot visit more experts than there are."""
        if choices > experts and not self.wrong & {choices_key, experts_key}:
            self.report(f"must be at most {experts_key}, which is {experts}, got {choices}", choices_key)
