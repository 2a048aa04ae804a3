"""Chat templates. In: the template of a model's file, and messages. Out: the text, or the tokens, of a prompt that ends
where the model's answer begins. Stands between a conversation and the tokenizer.

A template is an untrusted program. It runs in Jinja's sandbox, without files and without attributes of Python's
own; `template_limits` counts its steps and the sizes of what it makes, so one that does not end is an error."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.base.errors import TemplateError, UnsupportedError
from tilewright.llm.tokens.tokenizer import Tokenizer
from tilewright.llm.tokens.tokenizer_files import read_settings

Message = Mapping[str, Any]

# Private-use characters: one that does not occur in a conversation marks the text of users.
_MARKS = tuple(map(chr, range(0xE000, 0xE100)))
_MAX_SOURCE = 1 << 20
_REMEDY = "use another file of the model, or `tilewright generate`, which needs no template"


class ChatTemplate:
    """A compiled template. `render` gives the text of a prompt, `encode` its tokens."""

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        """`bos` and `eos` are the spellings of the tokens that begin and end a text."""
        from tilewright.llm.tokens.template_limits import compile_template

        if len(source) > _MAX_SOURCE:
            raise TemplateError("chat template", f"it has {len(source)} characters", _REMEDY)
        self.source = source
        self._names = {"bos_token": bos, "eos_token": eos}
        self._render = compile_template(source)

    def render(
        self, messages: Sequence[Message], *, answer: bool = True, tools: Sequence[Any] | None = None, **names: Any
    ) -> str:
        """The text of a conversation; with `answer` it ends with the beginning of the assistant's turn. `names`
        are further variables of the template."""
        given = [check_message(message) for message in messages]
        if not given:
            raise TemplateError("chat template", "the conversation has no messages", "give at least one")
        return self._render(
            self._names
            | names
            | {"messages": given, "add_generation_prompt": answer, "tools": list(tools) if tools else None}
        )

    def encode(
        self, tokenizer: Tokenizer, messages: Sequence[Message], *, tools: Sequence[Any] | None = None, **names: Any
    ) -> list[int]:
        """The tokens of a prompt. Control tokens come from the template alone: where a message spells one, a mark is
        put into it, which the tokenizer takes out after it has looked for control tokens."""
        mark = _unused_mark(json.dumps([list(messages), tools], default=str, ensure_ascii=False) + self.source)
        kept = [_mark_texts(message, tokenizer.control_texts, mark) for message in messages]
        text = self.render(kept, tools=_mark_texts(tools, tokenizer.control_texts, mark) if tools else None, **names)
        return tokenizer.encode(text, special=True, begin=True, mark=mark)


def check_message(message: Message) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise TemplateError("chat template", f"{message!r} is not a message", "give records with a role and a content")
    return dict(message) if "content" in message else {**message, "content": ""}


def _unused_mark(text: str) -> str:
    for mark in _MARKS:
        if mark not in text:
            return mark
    raise TemplateError("chat template", "the conversation uses every private-use character", "leave one out")


def _mark_texts(value: Any, control_texts: Sequence[str], mark: str) -> Any:
    """The value with a mark in each spelling of a control token, in all its texts."""
    if isinstance(value, str):
        for spelling in control_texts:
            if spelling in value:
                value = value.replace(spelling, spelling[0] + mark + spelling[1:])
        return value
    if isinstance(value, Mapping):
        return {key: _mark_texts(item, control_texts, mark) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mark_texts(item, control_texts, mark) for item in value]
    return value


# ---------------------------------------------------------------- loading


def load_template(source: Mapping[str, Any] | str | Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The template in the facts of a GGUF file, or in a Hugging Face folder; None where there is none."""
    text = _text_of_facts(source) if isinstance(source, Mapping) else _text_of_folder(Path(source))
    if not text:
        return None
    bos, eos = ("" if token is None else tokenizer.pieces[token] for token in (tokenizer.bos, tokenizer.eos))
    return ChatTemplate(text, bos, eos)


def _text_of_facts(facts: Mapping[str, Any]) -> str:
    found = facts.get("tokenizer.chat_template", "")
    if not isinstance(found, str):
        raise TemplateError("chat template", "the file's chat template is not a string", _REMEDY)
    return found


def _text_of_folder(folder: Path) -> str:
    plain = folder / "chat_template.jinja"
    if plain.is_file():
        return plain.read_text(encoding="utf-8")
    found = read_settings(folder, "tokenizer_config.json").get("chat_template") if folder.is_dir() else None
    if isinstance(found, list):  # several by name
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default", "")
    return found if isinstance(found, str) else ""


def need_template(template: ChatTemplate | None, model: str) -> ChatTemplate:
    """The template; an error where a model has none, because it was not trained for conversations."""
    if template is None:
        message = f"{model} has no chat template: it continues texts and was not trained to answer"
        raise UnsupportedError("chat", message, f"`tilewright generate {model} 'Once upon a time'`")
    return template
