"""`tilewright chat` and `tilewright generate`. In: a model, how to sample, and text that is typed or piped. Out: the
model's text, shown while it is generated, and its speed. The conversation is kept; `/reset` forgets it."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tilewright.base.errors import FileError, GenerationError

if TYPE_CHECKING:
    from tilewright.llm.chat_model import ChatModel
    from tilewright.llm.generator import Request
    from tilewright.llm.sampling import Sampling

HELP = """Write a message and press Enter.
  /reset   forget the conversation
  /help    this list
  /exit    leave, as Ctrl-D does
Ctrl-C stops an answer. A line that ends with \\ goes on in the next one."""
INTERRUPTED = 130


@dataclass(frozen=True)
class ChatRequest:
    """The arguments of the command. `prompt` is one message to answer; without it messages come from stdin."""

    model: str
    prompt: str
    system: str
    device: str
    shard: int
    context: int | None
    limit: int | None
    sampling: Sampling
    stop: tuple[str, ...] = ()


# ---------------------------------------------------------------- commands


def run_chat(request: ChatRequest) -> int:
    """Answers a prompt, or the text of a pipe; else holds a conversation."""
    is_talk = not request.prompt and sys.stdin.isatty()
    prompt = request.prompt or ("" if is_talk else sys.stdin.read().strip())
    if not is_talk and not prompt:
        raise FileError("chat", "there is no message: stdin is empty", "give one with --prompt, or by a pipe")
    talk = _Talk(_open(request), request)
    if is_talk:
        return _loop(talk)
    return talk.answer(prompt)


def run_generate(request: ChatRequest) -> int:
    """Continues a text, which is shown again before its continuation."""
    prompt = request.prompt or ("" if sys.stdin.isatty() else sys.stdin.read())
    model = _open(request)
    running = model.generator.submit(model.encode(prompt), request.sampling, request.limit)
    _write(prompt)
    return _show(model, running, request.stop, continues=bool(prompt))[1]


def _open(request: ChatRequest) -> ChatModel:
    from tilewright.llm.chat_model import open_model

    return open_model(request.model, device=request.device or None, shard=request.shard, context=request.context)


# ---------------------------------------------------------------- a conversation


class _Talk:
    """A conversation and the model that has it."""

    def __init__(self, model: ChatModel, request: ChatRequest) -> None:
        from tilewright.llm.tokens.template import need_template

        need_template(model.template, request.model or model.name)
        self.model = model
        self.request = request
        self.messages: list[dict[str, Any]] = []
        self.reset()

    def reset(self) -> None:
        system = self.request.system
        self.messages = [{"role": "system", "content": system}] if system else []

    def answer(self, text: str) -> int:
        """Shows the answer to a message; exit status 0, or that of an interruption."""
        asked = [*self.messages, {"role": "user", "content": text}]
        running = self.model.generator.submit(self.model.encode_chat(asked), self.request.sampling, self.request.limit)
        answer, status = _show(self.model, running, self.request.stop)
        self.messages = [*asked, {"role": "assistant", "content": answer}]
        return status


def _loop(talk: _Talk) -> int:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (lines can be edited, and earlier ones called back)
    notes = _notes()
    notes.print(f"{talk.model.name}: {HELP}\n", markup=False)
    while True:
        try:
            text = _read_message()
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print()
            continue
        if text in ("/exit", "/quit", "/bye"):
            return 0
        if text == "/reset":
            talk.reset()
            notes.print("The conversation is forgotten.")
        elif text.startswith("/"):
            notes.print(HELP if text == "/help" else f"{text.split()[0]} is not a command.\n{HELP}", markup=False)
        elif text:
            _answer_or_tell(talk, text, notes)


def _answer_or_tell(talk: _Talk, text: str, notes: Console) -> None:
    """Answers a message. An error, as of one that is too long, does not end the conversation."""
    try:
        talk.answer(text)
    except KeyboardInterrupt:  # before the answer began, or for a second time
        print()
    except GenerationError as error:
        notes.print(f"{error.message}\n  to fix it: {error.remedy} (/reset)", markup=False)


def _read_message() -> str:
    lines = [input("> ")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input("... "))
    return "\n".join(lines).strip()


# ---------------------------------------------------------------- text on the screen


def _show(model: ChatModel, running: Request, stop: tuple[str, ...], continues: bool = False) -> tuple[str, int]:
    """The text of a request, which is shown while it comes, and the exit status. Ctrl-C ends it between two tokens, so
    that what the model holds stays whole."""
    shown: list[str] = []
    with _interrupts(running):
        for piece in model.stream(running, stop, continues):
            shown.append(piece)
            _write(piece)
    _write("\n")
    _notes().print(describe(running), markup=False)
    return "".join(shown), INTERRUPTED if running.finished == "cancelled" else 0


def _write(text: str) -> None:
    """Writes to stdout; characters that its encoding lacks become question marks."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def _notes() -> Console:
    """A console for everything but the model's text: on stderr, so that a pipe gets the text alone."""
    return Console(stderr=True, highlight=False, soft_wrap=True, style="dim")


def describe(running: Request) -> str:
    """How many tokens, how fast, and why the answer ended where it is cut off."""
    waited = (running.first_token_at or time.monotonic()) - running.submitted_at
    held = f" ({running.reused} held)" if running.reused else ""
    speed = f", {running.tokens_per_second:.1f} tokens/s" if running.tokens_per_second else ""
    ends = {"length": ", cut off at the limit of tokens", "cancelled": ", stopped"}.get(running.finished, "")
    return (
        f"[{running.prompt_tokens} tokens in{held}, first after {waited:.2f} s; "
        f"{len(running.tokens)} tokens out{speed}{ends}]"
    )


@contextlib.contextmanager
def _interrupts(running: Request) -> Iterator[None]:
    """Ctrl-C cancels the request; a second one raises at once, where a step takes long."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def cancel(number: int, frame: Any) -> None:
        del frame
        if running.finished:
            raise KeyboardInterrupt(number)
        running.cancel()

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
