"""The commands for language models: `chat`, `generate` and `models`. In: the arguments of the process. Out: what
`cli/chat.py` and `cli/models.py` do with them. `main` adds them to the others."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from tilewright.cli.mistakes import mistakes

MODEL_HELP = "A path, hf:owner/repository/file, or a name of `tilewright models`."
Model = Annotated[str, typer.Argument(help=MODEL_HELP)]
Device = Annotated[str, typer.Option(help="The device of the model.")]
Shard = Annotated[int, typer.Option(min=1, help="How many devices share the model.")]
Context = Annotated[int, typer.Option(min=0, help="Tokens of prompt and answer; 0: the model's, to 4096.")]
MaxTokens = Annotated[int, typer.Option(min=0, help="The most tokens of an answer; 0: what the context holds.")]
Temperature = Annotated[float, typer.Option(help="0 takes the most probable token, 1 as probable as it is.")]
TopK = Annotated[int, typer.Option(help="Sample from the k most probable tokens; 0 samples from all.")]
TopP = Annotated[float, typer.Option(help="Sample from the tokens that have this probability together.")]
MinP = Annotated[float, typer.Option(help="Leave out tokens with less than this share of the best one's probability.")]
Penalty = Annotated[float, typer.Option(help="Above 1, tokens that occurred become less likely.")]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same answers.")]
Stop = Annotated[list[str] | None, typer.Option(help="End the answer before this text.")]


def chat(
    model: Model = "",
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="Answer this message and leave.")] = "",
    system: Annotated[str, typer.Option(help="What the model is told about its part.")] = "",
    device: Device = "",
    shard: Shard = 1,
    context: Context = 0,
    max_tokens: MaxTokens = 0,
    temperature: Temperature = 0.2,
    top_k: TopK = 0,
    top_p: TopP = 0.9,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = None,
    stop: Stop = None,
) -> None:
    """Talk with a language model; without a name with SmolLM2, which is fetched the first time (93 MB)."""
    from tilewright.cli.chat import ChatRequest, run_chat
    from tilewright.llm.sampling import Sampling

    with mistakes():
        sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed)
        limits = (context or None, max_tokens or None)
        status = run_chat(ChatRequest(model, prompt, system, device, shard, *limits, sampling, tuple(stop or ())))
    raise typer.Exit(status)


def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="The text to continue; stdin where there is none.")] = "",
    device: Device = "",
    shard: Shard = 1,
    context: Context = 0,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.2,
    top_k: TopK = 0,
    top_p: TopP = 0.9,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = None,
    stop: Stop = None,
) -> None:
    """Continue a text with a language model."""
    from tilewright.cli.chat import ChatRequest, run_generate
    from tilewright.llm.sampling import Sampling

    with mistakes():
        sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed)
        limits = (context or None, max_tokens or None)
        status = run_generate(ChatRequest(model, prompt, "", device, shard, *limits, sampling, tuple(stop or ())))
    raise typer.Exit(status)


def models() -> None:
    """List the language models that have names, and which of them are on this machine."""
    from tilewright.cli.models import models_table

    Console(highlight=False).print(models_table())


def add_commands(app: typer.Typer) -> None:
    for command in (chat, generate, models):
        app.command()(command)
