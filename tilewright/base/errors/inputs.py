"""Errors of what a program is given to read: options, the cache folder, files of weights or data, text forms, prompts
and chat templates."""

from __future__ import annotations

from tilewright.base.errors.root import UserError
from tilewright.base.location import Location


class ConfigError(UserError, ValueError):
    """An option does not exist or was given a value it cannot have.

    Broken::

        with Context(DEBGU=2): ...

    Fixed::

        with Context(DEBUG=2): ...
    """


class CacheError(UserError):
    """The cache folder cannot be used: not writable, not a folder, or full.

    Broken::

        TILEWRIGHT_CACHE_DIR=/etc/hostname python train.py

    Fixed, with a folder that can be written, or without a disk cache::

        CACHE=0 python train.py
    """


class ParseError(UserError, ValueError):
    """A text form (a graph, a dtype, a pattern) cannot be read; the message points at the character.

    Broken::

        parse("%0 = CONST int32 (")

    Fixed::

        parse("%0 = CONST int32 () 1")
    """

    def __init__(
        self,
        operation: str,
        message: str,
        remedy: str = "",
        *,
        text: str = "",
        position: int = 0,
        location: Location | None = None,
    ) -> None:
        super().__init__(operation, message, remedy, location=location)
        self.text = text
        self.position = position

    def _details(self) -> list[str]:
        if not self.text:
            return []
        line_start = self.text.rfind("\n", 0, self.position) + 1
        line_number = self.text.count("\n", 0, self.position) + 1
        line = self.text[line_start:].partition("\n")[0]
        column = self.position - line_start
        prefix = f"  line {line_number}: "
        return [prefix + line, " " * (len(prefix) + column) + "^"]


class StateError(UserError, ValueError):
    """A state dict does not fit its model. The message lists the names that are missing, unexpected or of the wrong
    shape.

    Broken::

        load_state_dict(Linear(4, 2), {"weight": Tensor.zeros(2, 3)})

    Fixed::

        load_state_dict(Linear(4, 2), {"weight": Tensor.zeros(2, 4), "bias": Tensor.zeros(2)})
    """


class FileError(UserError):
    """A file of weights or data is not there and cannot be fetched, cannot be read or written, or lacks what was asked.

    Broken, without a network::

        x_train, y_train, x_test, y_test = datasets.cifar10()

    Fixed, with a folder that holds the files::

        x_train, y_train, x_test, y_test = datasets.cifar10(folder="/data/cifar10")
    """


class FileFormatError(FileError, ValueError):
    """A file of weights or data is damaged, cut off, of another format, or asks for what loading refuses.

    Broken, a pickle may run any program, and this one names `os.system`::

        torch_load("from_a_stranger.pt")

    Fixed, with a format that holds numbers alone::

        safe_load("from_a_stranger.safetensors")
    """


class GenerationError(UserError, ValueError):
    """A language model cannot go on: a prompt is longer than its context, or it returned no probabilities.

    Broken::

        Generator(model, context=64).submit(list(range(100)), Sampling(), limit=10)

    Fixed::

        Generator(model, context=128).submit(list(range(100)), Sampling(), limit=10)
    """


class TemplateError(GenerationError):
    """A chat template is broken, refuses the messages it was given, or takes more time or memory than a template may.

    Broken, where the template wants roles to alternate::

        template.render([{"role": "assistant", "content": "Hello"}])

    Fixed::

        template.render([{"role": "user", "content": "Hello"}])
    """
