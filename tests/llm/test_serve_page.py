"""The chat page in a real browser: Debian's chromium, driven by Playwright, against a server with the stand-in model.

Slow, and skipped where the browser or Playwright is missing: `apt-get install chromium`, `pip install playwright`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import MARKS, started_browser
from tests.llm.serving import StandIn, running_server, wait_until

pytestmark = MARKS
HOSTILE = b"""<img src=x onerror="window.hurt=1"><script>window.hurt=2</script>
[click](javascript:window.hurt=3) [data](data:text/html,<script>alert(1)</script>) [file](file:///etc/passwd)
![](https://example.com/tracker.png) `<b>code</b>` **<i>bold</i>** <https://example.org/a>
| <u>a</u> | b |
|---|---|
| <svg onload=window.hurt=4> | [x](vbscript:x) |

```html
<script>window.hurt=5</script>
```
"""
MARKDOWN = b"""# Title
Some **bold**, *italic*, ~~gone~~ and `code`.

1. one
2. two
   - inner

> quoted

| a | b |
|---|--:|
| 1 | 2 |

```python
return 1
```
See [docs](https://example.org/x).
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of a browser that has never been here. Whatever it reports as wrong fails the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.complaints = []
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("console", lambda message: page.complaints.append(message.text) if message.type == "error" else None)
    page.asked = []
    page.on("request", lambda request: page.asked.append(request.url))
    yield page
    context.close()


def ask(page: Any, text: str) -> None:
    page.fill("#input", text)
    page.press("#input", "Enter")


def wait_for_answer(page: Any) -> str:
    page.wait_for_selector("article.assistant:last-child:not(.running)")
    return str(page.inner_text("article.assistant:last-child .body"))


def test_a_conversation_is_kept(page: Any) -> None:
    with running_server(StandIn(pause=0.001)) as served:
        page.goto(served.url)
        wait_until(lambda: page.inner_text("#model") == "stand-in")
        ask(page, "first question")
        assert wait_for_answer(page) == "FIRST QUESTION"
        assert "tokens/s" in page.inner_text("article.assistant .notes")
        assert "14 tokens" in page.inner_text("article.assistant .notes")
        ask(page, "second question")
        page.wait_for_selector("article:nth-child(4):not(.running)")
        assert page.inner_text("#title") == "first question"
        page.reload()
        assert page.locator("article").count() == 4
        assert wait_for_answer(page) == "SECOND QUESTION"
        page.keyboard.press("Control+Shift+O")
        assert page.locator("article").count() == 0
        ask(page, "another chat")
        wait_for_answer(page)
        assert page.locator(".chat").count() == 2
        page.click(".chat:nth-of-type(2) .open")
        assert page.locator("article").count() == 4
        page.on("dialog", lambda dialog: dialog.accept())
        page.hover(".chat.current")
        page.click(".chat.current .icon")
        assert page.locator(".chat").count() == 1
        assert page.complaints == []
        assert all(url.startswith((served.url, "data:")) for url in page.asked), page.asked


def test_the_stop_button_frees_the_slot(page: Any) -> None:
    model = StandIn(slots=1, pause=0.01)
    with running_server(model) as served:
        page.goto(served.url)
        for stop in (lambda: page.click("#send"), lambda: page.keyboard.press("Escape")):
            ask(page, "endless")
            wait_until(lambda: "endless" in page.inner_text("article:last-child .body"))
            stop()
            wait_until(lambda: model.active == [])
            assert "Stopped" in page.inner_text("article.assistant:last-child .notes")
        page.click("article.assistant:last-child [aria-label='Answer again']")
        wait_until(lambda: "endless" in page.inner_text("article:last-child .body"))
        page.close()
        wait_until(lambda: model.active == [])


def test_editing_and_keys(page: Any) -> None:
    with running_server(StandIn()) as served:
        page.goto(served.url)
        ask(page, "one")
        wait_for_answer(page)
        page.press("#input", "ArrowUp")
        assert page.input_value("#input") == "one"
        page.keyboard.press("Escape")
        assert page.input_value("#input") == ""
        page.press("#input", "ArrowUp")
        ask(page, "two")
        wait_until(lambda: page.inner_text("article.assistant .body") == "TWO")
        assert page.locator("article").count() == 2
        page.fill("#input", "a")
        page.press("#input", "Shift+Enter")
        page.keyboard.type("b")
        assert page.input_value("#input") == "a\nb"


def test_settings_reach_the_model_and_stay(page: Any) -> None:
    model = StandIn()
    with running_server(model) as served:
        page.goto(served.url)
        page.keyboard.press("Control+,")
        page.fill("#set-system", "be brief")
        page.fill("#set-temperature", "0.25")
        page.fill("#set-max_tokens", "3")
        page.select_option("#set-theme", "dark")
        page.keyboard.press("Escape")
        page.reload()
        assert page.get_attribute("html", "data-theme") == "dark"
        ask(page, "question")
        assert wait_for_answer(page) == "QUE"
        assert "Cut" in page.inner_text("article.assistant .notes")
        assert model.samplings[-1].temperature == 0.25
        assert page.evaluate("JSON.parse(localStorage['tilewright.settings']).system") == "be brief"
        page.click("#toggle-theme")
        assert page.get_attribute("html", "data-theme") == "light"


def test_markdown(page: Any) -> None:
    model = StandIn()
    model.answer = lambda line: MARKDOWN
    with running_server(model) as served:
        page.goto(served.url)
        ask(page, "x")
        wait_for_answer(page)
        body = "article.assistant .body"
        for selector, text in (
            ("h3", "Title"),
            ("strong", "bold"),
            ("em", "italic"),
            ("del", "gone"),
            ("p > code", "code"),
            ("ol > li:nth-child(1)", "one"),
            ("ol ul li", "inner"),
            ("blockquote", "quoted"),
            ("td.right", "2"),
            ("pre .keyword", "return"),
            ("a[href='https://example.org/x'][rel~=noopener]", "docs"),
        ):
            assert page.inner_text(f"{body} {selector}").strip() == text, selector


def test_nothing_that_is_written_becomes_a_tag(page: Any) -> None:
    model = StandIn()
    model.answer = lambda line: HOSTILE
    with running_server(model) as served:
        page.goto(served.url)
        ask(page, HOSTILE.decode())
        wait_for_answer(page)
        page.reload()
        shown = wait_for_answer(page)
        assert '<img src=x onerror="window.hurt=1">' in shown
        assert "<script>window.hurt=5</script>" in shown
        assert page.locator("#messages :is(img, script, svg:not([aria-hidden]), iframe, u, i, b)").count() == 0
        links = page.eval_on_selector_all("#messages a", "all => all.map(one => one.protocol)")
        assert set(links) == {"https:"}
        assert page.evaluate("window.hurt") is None
        assert page.complaints == []
        assert all(url.startswith((served.url, "data:")) for url in page.asked), page.asked


def test_what_is_kept_cannot_break_the_page(page: Any) -> None:
    with running_server(StandIn()) as served:
        page.goto(served.url)
        page.evaluate("""() => {
            localStorage['tilewright.chat.a'] = '{broken';
            localStorage['tilewright.chat.b'] = '{"id": 5, "messages": "x"}';
            localStorage['tilewright.chat.c'] = '{"id": "c", "messages": [null]}';
            localStorage['tilewright.settings'] = '[]';
        }""")
        page.reload()
        ask(page, "works")
        assert wait_for_answer(page) == "WORKS"
        assert page.complaints == []


def test_a_key_is_asked_for(page: Any) -> None:
    with running_server(StandIn(), api_key="secret") as served:
        page.goto(served.url)
        page.wait_for_selector("#settings[open]")
        page.fill("#set-key", "secret")
        page.keyboard.press("Escape")
        ask(page, "hello")
        assert wait_for_answer(page) == "HELLO"


def test_errors_are_shown(page: Any) -> None:
    model = StandIn(slots=1)
    model.context = 40
    with running_server(model) as served:
        page.goto(served.url)
        ask(page, "x" * 50)
        page.wait_for_selector("article .error")
        assert "too long" in page.inner_text("article .error")
    page.keyboard.press("Control+Shift+O")
    ask(page, "anybody there?")
    page.wait_for_selector("article .error")
    assert "cannot be reached" in page.inner_text("article .error")


def test_a_narrow_window(browser: Any) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 700}, has_touch=True, is_mobile=True)
    page = context.new_page()
    model = StandIn()
    model.answer = lambda line: MARKDOWN + b"| a |" * 60 + b"\n" + b"x" * 500
    with running_server(model) as served:
        page.goto(served.url)
        page.fill("#input", "x")
        page.tap("#send")
        wait_for_answer(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert not page.is_visible("#new-chat")
        page.tap("#open-sidebar")
        page.wait_for_selector("#new-chat", state="visible")
        page.tap("#new-chat")
        assert page.locator("article").count() == 0
    context.close()
