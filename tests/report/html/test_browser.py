"""The pages in a real headless browser: drawn, legible in light and dark, and content with what is inside them."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specdebug.report.bisect import bisect_report
from specdebug.report.compare import compare_report
from specdebug.report.flake import flake_report
from specdebug.report.html.page import page
from specdebug.report.replay import replay_report
from specdebug.verdict.outcome import Violation
from tests.report.gallery import report_of_all
from tests.report.samples import BAD, both, chooser, compared, outcome, recorded, replay_of, result, sampled, searched

CHROMIUM, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="no chromium and chromedriver on the PATH"),
]

BUFFERS = [[f"draft.buffer_{n}", 512 * n, 512 * n + 256, 64] for n in range(9)]
TREE = {"rid": "g.0", "tokens": list(range(900, 940)), "parents": [-1, 0, 0, *range(37)], "accepted": [0, 1, 2]}
DRAWN = (
    Violation("guard", "draft.buffer_2->draft.buffer_3", 9, "ran over", data={
        "arena": {"buffers": BUFFERS, "size": 4608, "reached": [1280, 1400]}, "tree": TREE,
    }),
    Violation("illegal-address", "k.buffer_2", 9, "left", data={
        "arena": {"buffers": BUFFERS[2:3], "size": 4608, "reached": [1400, 9000]},
    }),
)  # fmt: skip
"""Findings of which everything is drawn that can be."""

LEAST_CONTRAST = 4.5
"""Of text, by WCAG 2.1 level AA."""

CONTRAST = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (rgb) => rgb.slice(0, 3).map((part) => part / 255)
  .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
  .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const colour = parse(getComputedStyle(node).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const worst = {};
const told = "p, h1, h2, h3, td, th, dt, dd, summary, figcaption, code, pre, .chip, text";
for (const node of document.querySelectorAll(told)) {
  // Numbers on strong cells stand on a rectangle, which is no ancestor of theirs.
  if (!node.textContent.trim() || !node.getClientRects().length || node.matches("text.cell.strong")) continue;
  const style = getComputedStyle(node);
  const ink = light(parse(node.matches("text") ? style.fill : style.color));
  const paper = light(behind(node.matches("text") ? node.closest("div") : node));
  const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  const name = node.tagName + "." + (node.getAttribute("class") || "");
  worst[name] = Math.min(worst[name] ?? 99, ratio);
}
return worst;
"""

PLOTS = """
return [...document.querySelectorAll("svg.plot")].map((plot) => {
  const box = plot.getBoundingClientRect();
  const shapes = [...plot.querySelectorAll("polyline, polygon, rect, circle, line")];
  const outside = shapes.filter((shape) => {
    const own = shape.getBoundingClientRect();
    return own.left < box.left - 6 || own.right > box.right + 6 || own.top < box.top - 6 || own.bottom > box.bottom + 6;
  });
  const drawn = shapes.map((shape) => shape.getBoundingClientRect()).filter((own) => own.width + own.height > 0);
  return {label: plot.getAttribute("aria-label"), width: box.width, height: box.height, drawn: drawn.length,
          outside: outside.length};
});
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page a command, each with everything that it can show."""
    folder = tmp_path_factory.mktemp("pages")
    replay, comparison = compared()
    findings, subject, journal = searched(folder)
    with journal:
        bisect = page(bisect_report(findings, subject, 0, journal.trials, journal.evidence, chooser, None))
    found, question, journal = sampled(folder)
    with journal:
        flake = page(flake_report(found, question, [], journal.trials, journal.evidence, None))
    (folder / "all").mkdir()
    long = replay_of(result("fixed", outcome("fail", 32, violations=(*DRAWN, *BAD.violations[1:]))))
    sources = {
        "replay": page(replay_report(both(), recorded(fixed=(40, 3), reverted=(12, 2)))),
        "long": page(replay_report(long, recorded(fixed=(10_000, 32)))),
        "compare": page(compare_report(replay, comparison, recorded(fixed=(40, 2), reverted=(30, 2)))),
        "bisect": bisect,
        "flake": flake,
        "faults": page(report_of_all(str, folder / "all")["faults verify"]),
    }
    paths = {name: folder / f"{name}.html" for name in sources}
    for name, source in sources.items():
        paths[name].write_text(source, encoding="utf-8")
    return paths


def opened(browser: Any, path: Path, scheme: str = "light", width: int = 1200) -> Any:
    """The browser with the page open, every folded part unfolded."""
    emulated = {"media": "screen", "features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)
    browser.set_window_size(width, 900)
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(path.as_uri())
    browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true;")
    return browser


def requested(browser: Any) -> list[str]:
    """Every address the page asked for."""
    sent = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return [one["params"]["request"]["url"] for one in sent if one["method"] == "Network.requestWillBeSent"]


@pytest.mark.parametrize("name", ["replay", "long", "compare", "bisect", "flake", "faults"])
def test_every_plot_is_drawn_and_nothing_is_loaded_or_complained_of(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    opened(browser, pages[name])
    assert browser.get_log("browser") == []
    assert set(requested(browser)) <= {pages[name].as_uri()}
    plots = browser.execute_script(PLOTS)
    assert len(plots) == {"replay": 6, "long": 5, "compare": 6, "bisect": 3, "flake": 1, "faults": 1}[name]
    for plot in plots:
        assert plot["width"] > 400, plot
        assert plot["height"] > 80, plot
        assert plot["drawn"] >= 4, plot
        assert plot["outside"] == 0, plot


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["replay", "compare", "bisect", "flake", "faults"])
def test_text_stands_out_in_light_and_dark(browser: Any, pages: dict[str, Path], name: str, scheme: str) -> None:
    opened(browser, pages[name], scheme)
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(16, 19, 23)") == (scheme == "dark")
    contrast = browser.execute_script(CONTRAST)
    assert len(contrast) > 10
    assert {what: ratio for what, ratio in contrast.items() if ratio < LEAST_CONTRAST} == {}


@pytest.mark.parametrize("name", ["replay", "compare", "bisect", "flake", "faults"])
def test_a_narrow_window_scrolls_plots_and_tables_not_the_page(browser: Any, pages: dict[str, Path], name: str) -> None:
    opened(browser, pages[name], width=520)
    wide, window = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= window


def pointed(browser: Any, element: Any, seen: Callable[[], bool]) -> None:
    """Move the pointer onto an element until something is seen: on a busy machine a page still scrolls at the first."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.support.ui import WebDriverWait

    def moved(_: Any) -> bool:
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        ActionChains(browser).move_to_element(element).perform()
        return seen()

    WebDriverWait(browser, 60).until(moved)


def test_the_pointer_is_told_of_a_step_and_rows_light_their_lines(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.by import By

    opened(browser, pages["replay"])
    tip = browser.find_element(By.ID, "tip")
    pointed(browser, browser.find_elements(By.CSS_SELECTOR, ".hit")[4], tip.is_displayed)
    assert tip.text.startswith("step 5: decode\nbatch ")

    def lit() -> list[str]:
        return [line.get_attribute("data-rid") for line in browser.find_elements(By.CSS_SELECTOR, ".lit")]

    pointed(browser, browser.find_element(By.CSS_SELECTOR, "tr[data-rid='g.1']"), lambda: bool(lit()))
    assert lit() == ["g.1"]


def test_a_filter_leaves_the_rows_with_its_words(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.by import By

    opened(browser, pages["bisect"])
    field = browser.find_elements(By.CSS_SELECTOR, "input[data-filter]")[-1]  # of the last table, the trials
    rows = browser.find_elements(By.CSS_SELECTOR, f"#{field.get_attribute('data-filter')} tbody tr")
    field.send_keys("EXIT:9 fail")
    shown = [row for row in rows if row.is_displayed()]
    assert 0 < len(shown) < len(rows)
    assert all("exit:9" in row.text for row in shown)


def test_script_in_a_log_does_not_run(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["replay"])
    from selenium.webdriver.common.by import By

    assert browser.execute_script("return document.scripts.length") == 1
    assert (
        "</script><script>alert(1)"
        in browser.find_element(By.CSS_SELECTOR, "pre.log:not([aria-label^='commands'])").text
    )


def test_the_first_tab_skips_to_the_results_and_the_focus_is_seen(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    opened(browser, pages["replay"])
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    skip = browser.switch_to.active_element
    assert skip.text == "Skip to the results"
    assert skip.rect["x"] >= 0
    assert skip.value_of_css_property("outline-style") == "solid"
    skip.send_keys(Keys.ENTER)
    assert browser.switch_to.active_element.get_attribute("id") == "results"
    browser.switch_to.active_element.send_keys(Keys.TAB)
    focused = browser.switch_to.active_element
    assert focused.value_of_css_property("outline-style") == "solid"
    assert browser.execute_script("return document.activeElement.closest('main') !== null")
