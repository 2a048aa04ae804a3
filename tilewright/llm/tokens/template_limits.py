"""Jinja with limits. In: the source of a template. Out: a function from names to text that ends and stays small, or a
`TemplateError`. Steps are counted at every iteration of a loop and every call of a macro, in nodes that are put into
the parsed template; what could make a long text in one step (`*`, `+`, `~`, filters, methods of texts) is measured
before it is made, as far as its arguments tell, or right after."""

from __future__ import annotations

import datetime
import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tilewright.base.errors import TemplateError, UnsupportedError

MAX_STEPS = 200_000
MAX_SECONDS = 10.0
# Characters of a text, more than any context has; and elements of a list.
MAX_SIZE = 4_000_000
MAX_ITEMS = 200_000
# The total size of all texts and lists that one rendering makes, freed ones included.
MAX_TOTAL = 400_000_000
_MAX_NUMBER_BITS = 4096
_REMEDY = "use another file of the model, or `tilewright generate`, which needs no template"

Render = Callable[[dict[str, Any]], str]


class _TooMuch(Exception):
    """A limit that a template exceeded; raised through Jinja's code."""


class _Refused(Exception):
    """The template refuses the messages, by `raise_exception`."""


def compile_template(source: str) -> Render:
    jinja = _load_library()
    environment = _make_environment(jinja)
    try:
        tree = environment.parse(source)
        _count_steps(jinja, tree)
        template = environment.from_string(tree)
    except (jinja.TemplateError, RecursionError, SyntaxError, ValueError, MemoryError) as error:
        raise TemplateError("chat template", f"it cannot be read: {_reason(error)}", _REMEDY) from error

    def render(names: dict[str, Any]) -> str:
        _budget.steps = _budget.total = 0
        _budget.start = time.monotonic()
        try:
            return "".join(_limited(template.generate(names)))
        except _Refused as error:
            raise TemplateError(
                "chat template", f"the model's template says: {error}", "change the messages"
            ) from error
        except _TooMuch as error:
            raise TemplateError("chat template", f"it was stopped: {error}", _REMEDY) from error
        except RecursionError as error:
            raise TemplateError("chat template", "it was stopped: it calls itself without an end", _REMEDY) from error
        except (
            jinja.TemplateError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            MemoryError,
        ) as error:
            raise TemplateError("chat template", f"it fails on these messages: {_reason(error)}", _REMEDY) from error

    return render


def _limited(parts: Iterable[str]) -> Iterator[str]:
    size = 0
    for part in parts:
        size += len(part)
        if size > MAX_SIZE:
            raise _TooMuch(f"more than {MAX_SIZE} characters")
        yield part


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def _load_library() -> Any:
    try:
        import jinja2
        import jinja2.ext
        import jinja2.nodes
        import jinja2.sandbox
    except ImportError as error:
        remedy = "install it: `pip install jinja2`, or `pip install 'tilewright[llm]'`"
        raise UnsupportedError("chat template", "the package jinja2 is not installed", remedy) from error
    return jinja2


# ---------------------------------------------------------------- the environment


class _Budget(threading.local):
    """What the template that a thread is rendering has used."""

    steps = 0
    total = 0
    start = 0.0


_budget = _Budget()


def _make_environment(jinja: Any) -> Any:
    """Jinja's sandbox as templates of models expect it, which is how `transformers` sets it up."""

    class Environment(jinja.sandbox.ImmutableSandboxedEnvironment):  # type: ignore[misc]
        intercepted_binops = frozenset(("+", "*", "**", "%"))

        def count_step(self) -> str:
            _budget.steps += 1
            if _budget.steps > MAX_STEPS:
                raise _TooMuch(f"more than {MAX_STEPS} steps")
            _check_time()
            return ""

        def join_texts(self, *parts: Any) -> str:
            texts = [str(part) for part in parts]
            _check_size(sum(map(len, texts)))
            return "".join(texts)

        def wrap_str_format(self, value: Any) -> Any:
            """Wraps the `str.format` of the sandbox."""
            made = super().wrap_str_format(value)
            if made is None:
                return None

            def checked(*args: Any, **kwargs: Any) -> Any:
                _check_widths(str(value.__self__), [*args, *kwargs.values()])
                return made(*args, **kwargs)

            return checked

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operands(operator, left, right)
            return _checked(super().call_binop(context, operator, left, right))

        def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
            subject = getattr(function, "__self__", None)
            _check_arguments(getattr(function, "__name__", ""), subject, [*args, *kwargs.values()])
            self.count_step()
            return _checked(super().call(context, function, *args, **kwargs))

    made = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja.ext.loopcontrols, _generation_tag(jinja)]
    )
    made.filters["tojson"] = _to_json
    made.filters = {name: _guard(name, filter_function) for name, filter_function in made.filters.items()}
    del made.globals["lipsum"]
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return made


def _refuse(message: Any) -> None:
    raise _Refused(str(message)[:1000])


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **ignored: Any) -> str:
    del ignored  # separators and sort_keys; the default is what models were trained with
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _generation_tag(jinja: Any) -> Any:
    """`{% generation %}` marks text for training; in a prompt it is replaced by its contents."""

    class Generation(jinja.ext.Extension):  # type: ignore[misc]
        tags = frozenset(("generation",))

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    return Generation


def _count_steps(jinja: Any, tree: Any) -> None:
    """Puts a call of `count_step` into loops and macros, and a call of `join_texts` for `a ~ b`. The methods are taken
    from the environment, where no variable of a template can hide them."""
    nodes = jinja.nodes

    def call(name: str, arguments: list[Any], line: int) -> Any:
        return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None, lineno=line)

    for node in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        node.body.insert(0, nodes.Output([call("count_step", [], node.lineno)], lineno=node.lineno))
    _replace_concatenations(nodes, tree, call)
    tree.set_environment(tree.environment)


def _replace_concatenations(nodes: Any, node: Any, call: Callable[[str, list[Any], int], Any]) -> Any:
    for field, value in node.iter_fields():
        if isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, nodes.Node):
                    value[index] = _replace_concatenations(nodes, item, call)
        elif isinstance(value, nodes.Node):
            setattr(node, field, _replace_concatenations(nodes, value, call))
    return call("join_texts", list(node.nodes), node.lineno) if isinstance(node, nodes.Concat) else node


# ---------------------------------------------------------------- limits of sizes

# Methods and filters whose arguments are sizes of their results, and the greatest useful argument.
_SIZED = dict.fromkeys(("ljust", "rjust", "center", "zfill", "expandtabs", "indent", "wordwrap", "truncate"), 10_000)
_SIZED |= {"batch": 10_000, "slice": 10_000, "round": 100}


def _check_time() -> None:
    if time.monotonic() - _budget.start > MAX_SECONDS:
        raise _TooMuch(f"more than {MAX_SECONDS:.0f} seconds")


def _check_size(size: int, limit: int = MAX_SIZE) -> None:
    _budget.total += size
    if size > limit or _budget.total > MAX_TOTAL:
        raise _TooMuch(f"texts or lists of {max(size, _budget.total)} elements")
    _check_time()


def _checked(value: Any) -> Any:
    if isinstance(value, str | list | tuple):
        _check_size(len(value), MAX_SIZE if isinstance(value, str) else MAX_ITEMS)
    return value


def _check_operands(operator: str, left: Any, right: Any) -> None:
    sizes = [len(value) for value in (left, right) if isinstance(value, str | list | tuple)]
    numbers = [abs(value) for value in (left, right) if isinstance(value, int)]
    limit = MAX_SIZE if isinstance(left, str) or isinstance(right, str) else MAX_ITEMS
    if operator == "+" and len(sizes) == 2:
        _check_size(sum(sizes), limit)
    elif operator == "*" and sizes and numbers:
        _check_size(sizes[0] * numbers[0], limit)
    elif operator == "%" and isinstance(left, str):
        _check_widths(left, right if isinstance(right, tuple) else (right,))
    bits = [number.bit_length() for number in numbers]
    if operator == "**" and len(numbers) == 2:
        bits.append(bits[0] * numbers[1])
    if any(count > _MAX_NUMBER_BITS for count in bits):
        raise _TooMuch(f"a number of more than {_MAX_NUMBER_BITS} bits")


def _check_widths(text: str, values: Iterable[Any]) -> None:
    """A width in a format string, or one taken from the values, makes a text of that size."""
    widths = [int(digits[:20]) for digits in re.findall(r"\d+", text)]
    if re.search(r"%[^a-z]*\*|:[^}]*{", text):
        widths += [abs(value) for value in values if isinstance(value, int)]
    _check_size(sum(widths) + len(text))


def _check_arguments(name: str, subject: Any, values: list[Any]) -> None:
    """Refuses calls whose result would be too large, by their arguments."""
    numbers = [abs(value) for value in values if isinstance(value, int)]
    if name in _SIZED and any(number > _SIZED[name] for number in numbers):
        raise _TooMuch(f"{name} of {max(numbers)}")
    if name == "sum" and any(isinstance(value, list | tuple | str) for value in values):
        raise _TooMuch("sum of lists")
    if name == "join":
        _check_join(subject, values)
    elif isinstance(subject, str):
        if name == "replace" and len(values) >= 2:
            _check_size(len(subject) + (subject.count(str(values[0])) + 1) * len(str(values[1])))
        elif name == "format":
            _check_widths(subject, values)
        elif name in ("indent", "expandtabs"):
            widest = max([8, *numbers, *(len(value) for value in values if isinstance(value, str))])
            _check_size(len(subject) + (subject.count("\n") + subject.count("\t") + 1) * widest)


def _check_join(subject: Any, values: list[Any]) -> None:
    """`', '.join(list)`, or the filter `list | join(', ')`."""
    items, between = (
        (values[0] if values else (), subject) if isinstance(subject, str) else (subject, "".join(map(str, values)))
    )
    if isinstance(items, list | tuple):
        _check_size(sum(len(item if isinstance(item, str) else str(item)) + len(between) for item in items))


def _guard(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, with the sizes of what it is given and of what it makes checked. Some are given the environment or a
    context first."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        subject, *others = args[skipped:]
        _check_arguments(name, subject, [*others, *kwargs.values()])
        return _checked(function(*args, **kwargs))

    return guarded
