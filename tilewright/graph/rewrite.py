"""The rewriting engine. In: a graph and a rule set. Out: the graph in which no rule fires any more.
Every rule is applied here, so tracing, counting and bisecting rewrites need nothing from the passes that have rules;
`passes.py` does the same for passes."""

from __future__ import annotations

from typing import Any

from tilewright.base import events
from tilewright.base.config import options
from tilewright.base.errors import InternalError
from tilewright.graph.pattern import Rule
from tilewright.graph.rule_set import RuleSet
from tilewright.graph.uop import UOp

# Rewrites that follow from one another before the rules are called a loop.
CHAIN_LIMIT = 500

_applied = 0
# What the rules made of a node is kept on the node, under a name that ends with this while somebody listens: a trace
# that begins sees rules fire of which earlier ones have the results.
_watched_mark = ""


class _Origin:
    """Why a node is there: the rule that made it (or something it is part of), and what came before."""

    __slots__ = ("before", "depth", "rule")

    def __init__(self, rule: Rule, before: _Origin | None) -> None:
        self.rule = rule
        self.before = before
        self.depth: int = 1 if before is None else before.depth + 1


def rewrites_applied() -> int:
    """How many rewrites the process has applied while REWRITE_LIMIT was set; what a bisection searches over."""
    return _applied


def reset_rewrite_count() -> None:
    """Count from zero again, so that one process can try several values of REWRITE_LIMIT."""
    global _applied
    _applied = 0


def watch_anew() -> None:
    """Makes a new listener see every rule fire, also where the result is memoised."""
    global _watched_mark
    _watched_mark = f"#{int(_watched_mark[1:] or 0) + 1}"


def rewrite(root: UOp, rules: RuleSet, ctx: Any = None) -> UOp:
    """Apply the rules bottom-up until none fires. A node is visited once, after its sources; what a rule made is
    rewritten in turn, and stands for the node wherever it is used."""
    is_limited = options.REWRITE_LIMIT >= 0 or bool(options.DISABLE_RULES)
    watched = is_limited or "rule-fired" in events.listeners
    memo = rules.name if rules.pure and not is_limited else None
    if watched and memo is not None:
        memo += _watched_mark
    return _recall(root, {}, memo) or _run(root, rules, ctx, memo, watched)


def _run(root: UOp, rules: RuleSet, ctx: Any, memo: str | None, watched: bool) -> UOp:
    matchers = rules.matchers
    done: dict[UOp, UOp] = {}
    # A node that a rule replaced waits here for (what the rule made, the node with its new sources).
    pending: dict[UOp, tuple[UOp, UOp]] = {}
    origins: dict[UOp, _Origin] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        waiting = pending.get(node)
        if waiting is not None:
            made, current = waiting
            finished = done.get(made)
            if finished is None:
                # What the rule made needs the node that it replaces.
                raise _loop_error(rules, node, origins)
            _finish(node, finished, done, memo)
            if current is not node:
                _finish(current, finished, done, memo)
            stack.pop()
            continue

        ready = True
        changed = False
        for src in node.src:
            new = done.get(src)
            if new is None:
                cache = src._cache
                if memo is not None and cache is not None and memo in cache:
                    new = cache[memo]
                    if new is True:
                        new = src
                    done[src] = new
                elif not src.src and matchers[src.op] is None:
                    new = done[src] = src
                else:
                    ready = False
                    stack.append(src)
                    if node in origins:
                        origins.setdefault(src, origins[node])
                    continue
            if new is not src:
                changed = True
        if not ready:
            continue

        current = node
        if changed:
            current = UOp(node.op, node.dtype, tuple([done[src] for src in node.src]), node.arg)
            if current.line is None:
                current.line = node.line
            finished = _recall(current, done, memo)
            if finished is not None:
                _finish(node, finished, done, memo)
                stack.pop()
                continue
            if current in pending:
                raise _loop_error(rules, node, origins)

        matcher = matchers[current.op]
        fired = None if matcher is None else matcher(current, ctx)
        if fired is None or (watched and not _announce(rules, current, fired)):
            _finish(current, current, done, memo)
            if current is not node:
                _finish(node, current, done, memo)
            stack.pop()
            continue

        made, rule = fired
        if made.line is None:
            made.line = current.line
        origin = _Origin(rule, origins.get(node))
        if origin.depth > CHAIN_LIMIT:
            origins[node] = origin
            raise _loop_error(rules, node, origins)
        finished = _recall(made, done, memo)
        if finished is not None:
            _finish(node, finished, done, memo)
            if current is not node:
                _finish(current, finished, done, memo)
            stack.pop()
            continue
        origins[made] = origin
        pending[node] = (made, current)
        if current is not node:
            pending[current] = (made, current)
        stack.append(made)
    return done[root]


def _recall(node: UOp, done: dict[UOp, UOp], memo: str | None) -> UOp | None:
    """The memoised result of the rules for a node, from this call or an earlier one."""
    finished = done.get(node)
    if finished is None and memo is not None and node._cache is not None:
        kept: UOp | bool | None = node._cache.get(memo)
        # A node that stays as it is holds True and not itself, which would be a cycle of references.
        return node if isinstance(kept, bool) else kept
    return finished


def _finish(node: UOp, result: UOp, done: dict[UOp, UOp], memo: str | None) -> None:
    done[node] = result
    if memo is not None:
        if node._cache is None:
            node._cache = {}
        node._cache[memo] = True if node is result else result


def _announce(rules: RuleSet, before: UOp, fired: tuple[UOp, Rule]) -> bool:
    """Tells the listeners of a rewrite and counts it. False where REWRITE_LIMIT or DISABLE_RULES forbids it."""
    global _applied
    made, rule = fired
    if options.DISABLE_RULES and rule.name in options.DISABLE_RULES.split(","):
        return False
    limit = options.REWRITE_LIMIT
    if limit >= 0:
        if _applied >= limit:
            return False
        _applied += 1
    if "rule-fired" in events.listeners:
        events.emit("rule-fired", rule=rule.name, before=before, after=made, ruleset=rules.name)
    return True


def _loop_error(rules: RuleSet, node: UOp, origins: dict[UOp, _Origin]) -> InternalError:
    """Names the rules of the last rewrites that led to the node, latest last."""
    names: list[str] = []
    origin = origins.get(node)
    while origin is not None and len(names) < 16:
        names.append(origin.rule.name)
        origin = origin.before
    chain = " -> ".join(dict.fromkeys(reversed(names))) or "a rule whose result holds the node it replaces"
    return InternalError(f"the rules of {rules.name!r} never come to rest: {chain}; at {node!r}")
