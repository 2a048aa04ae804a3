"""`tilewright chat`, `generate` and `models`: text on stdout, everything else on stderr, mistakes as sentences. The
model is stories260K, in a folder with its vocabulary; a template is put beside it where a conversation is needed."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.llm.models import STORIES, STORIES_TOKENS
from tilewright.cli import chat as chat_module
from tilewright.cli.main import app
from tilewright.llm import chat_model
from tilewright.llm.tokens.template import ChatTemplate
from tilewright.llm.tokens.tokenizer_files import load_tokenizer

MODEL = str(STORIES / "stories260K.bin")
STORY = load_tokenizer(STORIES / "tok512.bin").decode(STORIES_TOKENS)
START = "Once upon a time, there was a little girl"
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"


def invoke(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


@pytest.fixture
def with_template(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(chat_model, "load_template", lambda source, tokenizer: ChatTemplate(TEMPLATE))
    return None


def test_generate_continues_a_text() -> None:
    done = invoke("generate", MODEL, START, "--max-tokens", "30", "--temperature", "0")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(START)
    assert STORY.startswith(done.stdout.rstrip("\n"))
    assert len(done.stdout) > len(START) + 30
    assert "30 tokens out" in done.stderr
    assert "tokens/s" in done.stderr
    assert "cut off" in done.stderr


def test_a_model_on_two_devices_gives_the_same_text() -> None:
    done = invoke("generate", MODEL, START, "--max-tokens", "20", "--temperature", "0", "--shard", "2")
    assert done.exit_code == 0, done.output
    assert STORY.startswith(done.stdout.rstrip("\n"))
    assert len(done.stdout) > len(START) + 20


def test_generate_reads_stdin_and_begins_without_a_prompt() -> None:
    piped = invoke("generate", MODEL, "--max-tokens", "8", "--temperature", "0", stdin=START)
    assert piped.stdout.startswith(START)
    empty = invoke("generate", MODEL, "--max-tokens", "8", "--temperature", "0")
    assert STORY.startswith(empty.stdout.rstrip("\n"))


def test_a_seed_repeats_and_a_stop_string_ends() -> None:
    settings = ("generate", MODEL, START, "--max-tokens", "20", "--temperature", "1", "--seed", "3")
    assert invoke(*settings).stdout == invoke(*settings).stdout
    stopped = invoke("generate", MODEL, START, "--temperature", "0", "--stop", "loved to")
    assert stopped.stdout.endswith("She \n")
    assert "cut off" not in stopped.stderr


@pytest.mark.usefixtures("with_template")
def test_chat_answers_a_prompt_or_a_pipe() -> None:
    prompt = invoke("chat", MODEL, "--prompt", START, "--max-tokens", "12", "--temperature", "0")
    assert prompt.exit_code == 0, prompt.output
    piped = invoke("chat", MODEL, "--max-tokens", "12", "--temperature", "0", stdin=START + "\n")
    assert prompt.stdout == piped.stdout
    assert 5 < len(prompt.stdout) < 60
    told = invoke("chat", MODEL, "--system", "Tom and a dog", "-p", START, "--max-tokens", "3")
    assert int(told.stderr.split()[0].strip("[")) > int(prompt.stderr.split()[0].strip("[")), "tokens of the prompt"


MISTAKES = [
    (("chat", "nonsense", "-p", "x"), "neither the name of a model nor a file"),
    (("chat", "./none.gguf", "-p", "x"), "no file './none.gguf'"),
    (("chat", MODEL, "-p", "x"), "no chat template"),
    (("chat", MODEL), "stdin is empty"),
    (("generate", MODEL, "x", "--temperature", "-1"), "temperature is -1"),
    (("generate", MODEL, "x", "--top-p", "2"), "top_p is 2"),
    (("generate", MODEL, "x", "--context", "100000"), "made for 512"),
    (("generate", MODEL, "Tom " * 600), "the context holds 512"),
    (("generate", MODEL, "x", "--device", "TOASTER"), "TOASTER"),
    (("generate", __file__, "x"), "test_chat.py"),
]


@pytest.mark.parametrize(("arguments", "told"), MISTAKES, ids=lambda value: str(value)[:30])
def test_mistakes_are_sentences(arguments: tuple[str, ...], told: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2, done.output
    assert told in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


def test_models_are_listed() -> None:
    done = invoke("models")
    assert done.exit_code == 0
    assert "smollm2 (default)" in done.stdout
    assert "gemma3-270m" in done.stdout
    assert "no" in done.stdout


# ---------------------------------------------------------------- at a terminal

PROGRAM = f"""
import sys
from tilewright.llm import chat_model
from tilewright.llm.tokens.template import ChatTemplate
chat_model.load_template = lambda source, tokenizer: ChatTemplate({TEMPLATE!r})
sys.argv = ["tilewright", "chat", {MODEL!r}, "--temperature", "0", *sys.argv[1:]]
from tilewright.cli.main import main
main()
"""


class Terminal:
    """A chat at a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        command = [sys.executable, "-c", PROGRAM, *arguments]
        environment = {**os.environ, "TERM": "dumb", "NO_COLOR": "1"}
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self.text = ""

    def write(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for(self, text: str) -> str:
        """What came up to and with a text, which must come within a minute."""
        end = time.monotonic() + 60
        while text not in self.text:
            assert time.monotonic() < end, f"no {text!r} in {self.text!r}"
            if select.select([self.master], [], [], 1)[0]:
                try:
                    self.text += os.read(self.master, 4096).decode("utf-8", "replace")
                except OSError:  # the other side is closed
                    break
        assert text in self.text, self.text
        found, _, self.text = self.text.partition(text)
        return found

    def end(self) -> int:
        """The exit status."""
        return self.process.wait(60)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


def test_a_conversation_at_a_terminal() -> None:
    with Terminal("--max-tokens", "6") as terminal:
        terminal.wait_for("> ")
        terminal.write("/help\n")
        assert "/reset" in terminal.wait_for("> ")
        terminal.write("/dance\n")
        assert "/dance is not a command" in terminal.wait_for("> ")
        terminal.write("Once upon\\\n")
        terminal.wait_for("... ")
        terminal.write("a time\n")
        assert "6 tokens out" in terminal.wait_for("> ")
        terminal.write("Then\n")
        assert "held)" in terminal.wait_for("> "), "the second message is not computed from the start"
        terminal.write("Tom " * 900 + "\n")
        assert "the context holds" in terminal.wait_for("> ")
        terminal.write("/reset\n")
        assert "forgotten" in terminal.wait_for("> ")
        terminal.write("Once\n")
        assert "[3 tokens in" in terminal.wait_for("> "), "the conversation is forgotten"
        terminal.write("/exit\n")
        assert terminal.end() == 0


def test_an_interrupt_ends_an_answer_and_not_the_conversation() -> None:
    with Terminal() as terminal:
        terminal.wait_for("> ")
        terminal.write("Once upon a time\n")
        terminal.wait_for("time\r\n")  # what was typed
        terminal.wait_for(" ")  # a word of the answer
        terminal.process.send_signal(signal.SIGINT)
        assert "tokens out" in terminal.wait_for("> ")
        terminal.write("Once\n")
        terminal.process.send_signal(signal.SIGINT)  # at any point of what follows
        terminal.wait_for("> ")
        terminal.write("\x04")
        assert terminal.end() == 0


def test_what_a_terminal_cannot_show_does_not_end_the_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with open(tmp_path / "out", "w", encoding="ascii") as file:
        monkeypatch.setattr(sys, "stdout", file)
        chat_module._write("héllo 🎉")
    assert (tmp_path / "out").read_text() == "h?llo ?"
