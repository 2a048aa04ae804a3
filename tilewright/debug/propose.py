"""Hypotheses that a language model proposes. In: a session, and the address of a server in OpenAI's form (`tilewright
serve` is one). Out: each proposal with its verdict, in the record of the session. A proposal is a set of options; it
counts only if the program, run with them in a separate process, is right."""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.base.config import DECLARATIONS
from tilewright.base.errors import ConfigError, UserError
from tilewright.debug import sessions
from tilewright.debug.investigate.process import Ended, Processes
from tilewright.debug.investigate.program_track import RUN_SECONDS, verdict_on
from tilewright.debug.investigate.switches import REFERENCE, settings_text
from tilewright.debug.investigate.target import Target, failure_of, make_target
from tilewright.debug.memory import SessionStore

MAX_PROPOSALS = 8
MAX_ANSWER_BYTES = 1 << 20
ANSWER_SECONDS = 600.0  # a model on a busy CPU reads a few tens of tokens a second
MAX_TOKENS = 400
# Options for paths and output: they cannot cause a wrong result.
REFUSED = frozenset({"TILEWRIGHT_CACHE_DIR", "PROFILE", "PROFILE_FILE", "DEBUG", "SHOW_PASS", "CACHE_MEGABYTES"})
_LIST = re.compile(r"\[.*\]", re.DOTALL)


@dataclass(frozen=True)
class Proposal:
    """Options that would make the program right if `why` were so."""

    settings: dict[str, str]
    why: str


def propose(session: str, address: str, model: str = "", key: str = "") -> list[dict[str, Any]]:
    """Ask for hypotheses that the session has not tried, try each, and record its verdict with the session's own."""
    store = sessions.find_session(session)
    record = store.read()
    proposals = parse_proposals(ask(address, model, prompt_of(record), key))
    return try_proposals(store, make_target(record["command"]), proposals)


def prompt_of(record: Mapping[str, Any]) -> str:
    """What failed, what was tried, and which options there are."""
    failure = str(record.get("failure", ""))[:2000]
    tried = [
        f"- {found['question']} ({found.get('settings', '')}): {found['verdict']}" for found in record["hypotheses"]
    ]
    # Only options that affect results: a short prompt fits a small model.
    known = [
        f"- {name}: {option.doc}"
        for name, option in DECLARATIONS.items()
        if name not in REFUSED and (option.affects or name in REFERENCE)
    ]
    return (
        "A program of the tensor compiler Tilewright fails. Propose further hypotheses about the part at fault. "
        "Each is a set of options that switches the suspected part off, so the program would be right with them.\n\n"
        f"The failure: {failure or 'a wrong result'}\n\nAlready tried:\n{chr(10).join(tried) or '- nothing'}\n\n"
        f"Options:\n{chr(10).join(known)}\n\n"
        f"Answer with a JSON list of at most {MAX_PROPOSALS} objects and nothing else: "
        '[{"settings": {"OPTION": "value"}, "why": "one sentence"}]'
    )


def ask(address: str, model: str, prompt: str, key: str = "") -> str:
    """The answer of the server at an address such as http://127.0.0.1:8000/v1."""
    if not address.startswith(("http://", "https://")):
        raise ConfigError("propose", f"{address!r} is not an address", "give one such as http://127.0.0.1:8000/v1")
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }
    if model:
        body["model"] = model
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(f"{address.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
            answer = json.loads(response.read(MAX_ANSWER_BYTES))
        return str(answer["choices"][0]["message"]["content"])
    except urllib.error.HTTPError as error:
        reason = " ".join(error.read(2000).decode(errors="replace").split())
        message = f"{address} refuses: {error.code} {error.reason}: {reason}"
        raise ConfigError(
            "propose", message, "fix what it says, such as the model's name or a longer context"
        ) from error
    except (OSError, urllib.error.URLError) as error:
        raise ConfigError("propose", f"{address} does not answer: {error}", "start a server there") from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        message = f"{address} answers in another form: {error!r}"
        raise ConfigError("propose", message, "give the address of a server in OpenAI's form") from error


def parse_proposals(answer: str) -> list[Proposal]:
    """The proposals of an answer that can be tried: options that exist, with values that they take."""
    found = _LIST.search(answer)
    try:
        values = json.loads(found.group()) if found else []
    except ValueError:
        values = []
    proposals: list[Proposal] = []
    for value in values if isinstance(values, list) else []:
        settings = value.get("settings") if isinstance(value, dict) else None
        if not isinstance(settings, dict) or not settings or not all(map(is_setting, *zip(*settings.items()))):
            continue
        given = {str(name): str(each) for name, each in settings.items()}
        if all(given != other.settings for other in proposals):
            proposals.append(Proposal(given, " ".join(str(value.get("why", "")).split())[:300]))
    return proposals[:MAX_PROPOSALS]


def is_setting(name: object, value: object) -> bool:
    """Whether an option of this name takes the value, and a proposal may set it."""
    declared = DECLARATIONS.get(name) if isinstance(name, str) and name not in REFUSED else None
    if declared is None or isinstance(value, dict | list):
        return False
    try:
        declared.parse(str(value))
    except UserError:
        return False
    return True


def try_proposals(store: SessionStore, target: Target, proposals: Sequence[Proposal]) -> list[dict[str, Any]]:
    """Each proposal as a scenario; those that were tried before are left out."""
    tried = {str(found.get("settings", "")) for found in store.read()["hypotheses"]}
    wanted = [each for each in proposals if settings_text(each.settings) not in tried]
    if not wanted:
        return []
    processes = Processes(store.note_processes)

    def run(settings: dict[str, str]) -> Ended:
        return processes.run(plain_command(target), settings, RUN_SECONDS)

    reference = run(REFERENCE)
    failure = failure_of(run({}), reference)
    if not failure.kind:
        raise ConfigError("propose", "the program is right as it is", "investigate one that fails")
    made = []
    for proposal in wanted:
        ended = run(proposal.settings)
        found = verdict_on(failure_of(ended, reference), failure)
        hypothesis = {
            "name": "proposed",
            "question": proposal.why or "proposed by a language model",
            "verdict": found.verdict,
            "evidence": found.evidence,
            "settings": settings_text(proposal.settings),
            "seconds": round(ended.seconds, 2),
        }
        store.add_hypothesis(hypothesis)
        made.append(hypothesis)
    return made


def plain_command(target: Target) -> list[str]:
    if target.kind == "repro":
        return [sys.executable, "-m", "tilewright", "replay", *target.words]
    return target.command
