"""The declaration of one option: type, default, what values it takes and whose results depend on it. In: the text of
an environment variable, or a value. Out: a value of the option's type, or a ConfigError that names what is expected.
Stands below `config.py`, which declares every option."""

from __future__ import annotations

from tilewright.base.errors import ConfigError

Value = int | str


class Option:
    """The declaration of one option. An integer option may have a `minimum`; a text option may list its `choices`.
    `affects` names the stages, or the record of a target, whose results depend on it; the keys of their caches are
    derived from it."""

    __slots__ = ("affects", "choices", "default", "doc", "kind", "minimum", "name")

    def __init__(
        self, default: Value, doc: str, minimum: int, choices: tuple[str, ...], affects: tuple[str, ...]
    ) -> None:
        self.name = ""
        self.kind: type[int] | type[str] = type(default)
        self.default = default
        self.doc = doc
        self.minimum = minimum
        self.choices = choices
        self.affects = affects

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def check(self, value: object, source: str = "option") -> Value:
        """Return `value` in the option's type, or raise a ConfigError that names what is expected."""
        if self.kind is int and isinstance(value, int) and value >= self.minimum:
            return int(value)
        if self.kind is str and isinstance(value, str) and (not self.choices or value in self.choices):
            return value
        remedy = f"give {self.expected}; the default is {self.default!r}"
        raise ConfigError(f"{source} {self.name}", f"{value!r} is not {self.expected}", remedy)

    def parse(self, text: str) -> Value:
        """Read the option from the text of its environment variable. Blank text means the default, as in a shell."""
        if not text.strip():
            return self.default
        value: object = text
        if self.kind is int:
            try:
                value = int(text)
            except ValueError:
                value = text
        return self.check(value, "environment variable")

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        if self.kind is int:
            return f"an integer of at least {self.minimum}"
        if self.choices:
            return "one of " + ", ".join(repr(choice) for choice in self.choices)
        return "text"
