"""The widgets as somebody uses them: JupyterLab in a real browser, by keyboard."""

import re

import pytest

import tinykit
from tests.browser.conftest import ARTIFACTS
from tests.hub_server import REPO
from tests.index_server import Fault

pytestmark = pytest.mark.timeout(1200)
TITLE = "Flaky login test on slow CI runners"
SETUP = f"""
from tests.widgets.typist import TYPED, typing_session
from tinykit import TinySession, widgets
session, typist = typing_session({TITLE!r}, hold_at=16)
print("set" + " up")
"""
PLAYGROUND = """
playground = widgets.TitlePlayground(session, recipes=[TYPED, "plain", "first-words"], message="")
playground
"""
MESSAGE = "the login test is flaky on slow CI runners, can you fix it?"

# WCAG 2: the contrast of each piece of text in our widgets and outputs with what is behind it
CONTRASTS = """() => {
    const parse = text => text.match(/[\\d.]+/g).map(Number)
    const over = (top, under) => {
        const a = top.length > 3 ? top[3] : 1
        return [0, 1, 2].map(i => top[i] * a + under[i] * (1 - a))
    }
    const behind = element => {
        const layers = []
        for (let e = element; e; e = e.parentElement) layers.unshift(parse(getComputedStyle(e).backgroundColor))
        return layers.reduce((under, top) => over(top, under), [255, 255, 255])
    }
    const light = color => {
        const [r, g, b] = color.map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b
    }
    const found = []
    for (const root of document.querySelectorAll(
        '.jp-OutputArea .widget-html-content, .jp-OutputArea .jp-RenderedHTMLCommon, .jp-RenderedText')) {
        const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT)
        while (walker.nextNode()) {
            const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement
            if (!text) continue
            const under = behind(element), top = over(parse(getComputedStyle(element).color), under)
            const [low, high] = [light(under), light(top)].sort((a, b) => a - b)
            found.push([text, (high + 0.05) / (low + 0.05)])
        }
    }
    return found
}"""


def cell_at(page, number):
    return page.locator(".jp-Notebook .jp-CodeCell").nth(number)


def run_cell(page, number, done=None):
    """Run a cell, and wait for its output to say `done`."""
    cell = cell_at(page, number)
    cell.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    if done:
        cell.locator(".jp-OutputArea-output", has_text=done).first.wait_for()
    return cell


def tab_to(page, wanted):
    """Press Tab until the element that a CSS selector names has the focus."""
    for _ in range(40):
        if page.evaluate("wanted => document.activeElement.matches(wanted)", wanted):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not lead to {wanted}")


def into_output_above(page):
    """From the cell below, as after Shift+Enter, into the output of the one above."""
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowUp")


def press(page, name):
    """Press a button by keyboard alone."""
    tab_to(page, f'.jupyter-button[title="{name}"]')
    page.keyboard.press("Enter")


def picture(page, name):
    """Both themes, as files to be looked at."""
    ARTIFACTS.mkdir(exist_ok=True)
    for theme, is_light in (("Light", "true"), ("Dark", "false")):
        page.evaluate(
            "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})",
            f"JupyterLab {theme}",
        )
        page.wait_for_function("is => document.body.dataset.jpThemeLight === is", arg=is_light)
        for text, ratio in page.evaluate(CONTRASTS):
            assert ratio >= 4.5, f"{text!r} has a contrast of {ratio:.1f} in the {theme} theme"
        page.screenshot(path=ARTIFACTS / f"{name}-{theme.lower()}.png")


def test_playground_by_keyboard_alone(opened):
    page = opened("playground", SETUP, PLAYGROUND, "print(6 * 7)", "typist.go_on.set()", "")
    run_cell(page, 0, "set up")
    cell = run_cell(page, 1)
    cell.get_by_role("button", name="Make titles").wait_for()
    for label in ("Message", "Model", "Device", "Precision", "typed", "plain", "first-words"):
        cell.get_by_label(label, exact=True).wait_for()  # what a screen reader calls them
    picture(page, "playground-new")
    into_output_above(page)
    tab_to(page, "textarea.widget-input")
    page.keyboard.type(MESSAGE)
    tab_to(page, "input[type=checkbox]")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")  # plain
    press(page, "Title the message by each recipe")
    card = cell.get_by_role("group", name="Recipe typed")
    card.get_by_text("Flaky login test", exact=True).wait_for()
    picture(page, "playground-running")
    tab_to(page, '.jupyter-button[title^="End what is running"]')
    page.keyboard.press("Space")
    run_cell(page, 2, "42")  # the kernel is free, although the typist waits
    run_cell(page, 3)
    cell.get_by_role("status").get_by_text("Stopped.").wait_for()
    card.get_by_text("(stopped)").wait_for()
    picture(page, "playground-stopped")
    page.keyboard.press("Escape")
    for _ in range(3):
        page.keyboard.press("ArrowUp")
    press(page, "Title the message by each recipe")
    card.get_by_text(TITLE).wait_for()
    cell.get_by_role("status").get_by_text(re.compile("^3 of 3 titles")).wait_for()
    tab_to(page, "summary")
    page.keyboard.press("Enter")
    card.get_by_text("The reply was a title as it stood.").wait_for()
    picture(page, "playground-done")


def test_streaming_cell_is_ended_by_the_stop_button(opened):
    page = opened(
        "stream",
        SETUP.replace("hold_at=16", "recipe=TYPED, pause_s=0.02").replace(f"{TITLE!r}", '"round and " * 800'),
        'for piece in session.stream("say it", max_tokens=8000): print(piece, end="")',
        'print(session.complete("say it", max_tokens=9))',
        "",
    )
    run_cell(page, 0, "set up")
    cell = run_cell(page, 1, "round and round")
    page.locator('[data-command="notebook:interrupt-kernel"]').first.click()
    cell.get_by_text("KeyboardInterrupt").first.wait_for()
    run_cell(page, 2, "round and")
    picture(page, "stream-stopped")


@pytest.mark.skipif(not hasattr(tinykit, "load_ipython_extension"), reason="tinykit has no magics here")
def test_magic_titles_and_another_streams_until_the_stop_button(opened):
    page = opened(
        "magics",
        """
from tests.widgets.typist import type_for_all
type_for_all("round and " * 800, pause_s=0.1)
%load_ext tinykit
print("set" + " up")
""",
        "%title -r first-words why does my docker container exit with code 137",
        "%tiny --max-tokens 1024 say it",
        "print(6 * 7)",
        "",
    )
    run_cell(page, 0, "set up")
    run_cell(page, 1, "docker container exit")
    cell = run_cell(page, 2, "round and round")
    page.locator('[data-command="notebook:interrupt-kernel"]').first.click()
    run_cell(page, 3, "42")
    output = cell.locator(".jp-OutputArea").inner_text()
    assert "round and round" in output and "1024" not in output
    picture(page, "magics")


def test_tables_of_magics_read_in_both_themes(opened):
    page = opened(
        "tables",
        """
%load_ext tinykit
%tiny use -r first-words
messages = ["why does my docker container exit with code 137", "hi", "<b>plan</b> a trip to Lisbon " * 5]
print("set" + " up")
""",
        "%title --why --stats {{messages}}",
        "%%tiny_eval -r first-words --stats\nplan a trip to Lisbon\nhello",
        "%tiny info",
        "%title --whi {{messages}}",
        "",
    )
    run_cell(page, 0, "set up")
    run_cell(page, 1, "2 of 3 messages have a title")
    run_cell(page, 2, "2 messages, 1 recipe")
    run_cell(page, 3, "Used by")
    cell = run_cell(page, 4, "Did you mean --why?")
    assert "Traceback" not in cell.inner_text()
    header = cell_at(page, 1).get_by_role("columnheader", name="seconds")
    assert (
        header.bounding_box()["height"]
        < 1.6
        * cell_at(page, 1).get_by_role("columnheader", name="title", exact=True).bounding_box()["height"]
    ), "the header is broken into lines"
    cell_at(page, 5).locator(".cm-content").click()
    cell_at(page, 1).scroll_into_view_if_needed()
    picture(page, "tables")


def test_download_is_watched_stopped_and_taken_up_again(opened, hub):
    name = "onnx/model_q4.onnx_data"
    hub.faults[name] = [Fault(stall_at=20_000_000)]
    page = opened("manager", SETUP, "manager = widgets.ModelManager()\nmanager", "")
    run_cell(page, 0, "set up")
    cell = run_cell(page, 1)
    cell.get_by_role("button", name="Download").wait_for()
    into_output_above(page)
    tab_to(page, "input[type=text]")
    page.keyboard.type(REPO)
    press(page, "Fetch the model, and import it")
    cell.get_by_text(re.compile(rf"{REPO}: \d+ % of 40")).wait_for()
    picture(page, "manager-download")
    press(page, "End the download; what has arrived is kept")
    hub.go_on.set()
    cell.get_by_role("status").get_by_text("Stopped. What has arrived is kept").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowUp")
    press(page, "Fetch the model, and import it")
    cell.get_by_role("status").get_by_text("is ready in").wait_for()
    cell.get_by_role("row", name=REPO).get_by_text("fetched").wait_for()
    press(page, "Asks before it removes")
    cell.get_by_text(f"Remove {REPO}").wait_for()
    tab_to(page, '.jupyter-button[title="Remove nothing"]')
    picture(page, "manager-question")
    page.keyboard.press("Enter")
    cell.get_by_role("status").get_by_text(f"{REPO} stays.").wait_for()
    tab_to(page, '.jupyter-button[title="Asks before it removes"]')


def test_bar_of_a_cell_moves_and_leaves_a_sentence(opened):
    slow = """
import pathlib, time
from tinykit.progress import Progress
with Progress().stage("thing", total=1_000_000_000, unit="B") as stage:
    while not pathlib.Path("go").exists():
        time.sleep(0.1)
        stage.advance(1_000_000)
"""
    page = opened("bar", slow, "pathlib.Path('go').write_text('')", "")
    cell = run_cell(page, 0, re.compile(r"thing: [1-9]\d* % of 1\.0 GB"))
    assert cell.locator(".widget-hprogress, .jupyter-widget-hprogress, [class*=progress]").count()
    picture(page, "bar")
    page.evaluate(
        "() => window.jupyterapp.serviceManager.contents.save('go', {type: 'file', format: 'text', content: ''})"
    )
    cell.locator(".jp-OutputArea-output", has_text=re.compile(r"thing: .* in \d+\.\d s")).wait_for()
    assert not cell.locator("[class*=progress]").count()


def test_latency_view_is_measured_by_keyboard(opened):
    page = opened(
        "latency",
        SETUP.replace("hold_at=16", "pause_s=0.01"),
        "widgets.LatencyView(session, runs=6)",
        "",
    )
    run_cell(page, 0, "set up")
    cell = run_cell(page, 1)
    cell.get_by_role("button", name="Measure").wait_for()
    into_output_above(page)
    tab_to(page, "input[type=number]")
    page.keyboard.press("Control+A")
    page.keyboard.type("4")
    press(page, "Ask the prompt anew in each run")
    cell.get_by_role("status").get_by_text("4 runs measured.").wait_for()
    cell.get_by_text("Median of 4").wait_for()
    cell.get_by_role("img", name="Seconds of 4 runs").wait_for()
    picture(page, "latency")


def test_playground_in_notebook_7(opened):
    pytest.importorskip("notebook")
    page = opened("seven", SETUP.replace("hold_at=16", "pause_s=0.01"), PLAYGROUND, "", app="notebooks")
    run_cell(page, 0, "set up")
    cell = run_cell(page, 1)
    cell.get_by_role("button", name="Make titles").wait_for()
    into_output_above(page)
    tab_to(page, "textarea.widget-input")
    page.keyboard.type(MESSAGE)
    press(page, "Title the message by each recipe")
    cell.get_by_role("group", name="Recipe typed").get_by_text(TITLE).wait_for()
    cell.get_by_role("status").get_by_text("2 of 2 titles").wait_for()
    picture(page, "notebook-7")
