"""The report in a real browser without a network: nothing is asked for, nothing fails, everything can be used."""

from __future__ import annotations

import csv
import json
import re
import shutil
import time

import numpy as np
import pytest

from run_folders import SPLITS, trust_of, write_run
from viewfuse.report.page import MOST_BYTES, write_report
from viewfuse.report.run_folder import read_run
from viewfuse.selection.decision_texts import records
from viewfuse.selection.decisions import ClusterNumber

pytestmark = pytest.mark.browser
HOSTILE = ["<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "=1+1", 'a "quoted", id', "日本"]
WAYS = {"wide": (1300, 900), "narrow": (400, 800)}


@pytest.fixture(scope="module")
def browser():
    sync = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        pytest.skip("needs Chromium; on Debian: apt-get install chromium-headless-shell")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with hostile ids and a choice of k, and its page with known columns."""
    folder = tmp_path_factory.mktemp("page")
    ids = HOSTILE + [f"s{i}" for i in range(len(HOSTILE), 150)]
    chosen = records(ClusterNumber(9, {}, "clusters", [], "", SPLITS))["n_clusters"]
    decided = {"trust": trust_of(), "n_clusters": chosen}
    fitted = write_run(folder / "run", n=150, ids=ids, clusters=9, decisions=decided, remarks=["look at <b>this</b>"])
    with (folder / "known.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("id", "class", "age"), *((name, f"<i>{i % 3}", i / 7) for i, name in enumerate(ids))]
        )
    write_report([fitted], folder / "report.html", folder / "known.csv")
    return read_run(fitted), folder / "report.html"


@pytest.fixture
def opened(browser):
    """Opens a page offline; afterwards nothing was asked for and nothing was complained about."""
    pages = []

    def open_page(path, way="wide", scheme="light"):
        width, height = WAYS[way]
        context = browser.new_context(
            offline=True, viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
        )
        page = context.new_page()
        page.asked, page.said = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("dialog", lambda dialog: page.said.append(dialog.message))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        pages.append((page, context, path))
        return page

    yield open_page
    for page, context, path in pages:
        assert [url for url in page.asked if not url.startswith("blob:")] == [path.as_uri()]
        assert page.said == []
        context.close()


def card(page) -> str:
    return page.inner_text("#lookup")


def marks_of(page) -> list[dict]:
    """Where the samples are on the screen; asked of the map itself."""
    return page.evaluate("maps[0].run.points.id.map((id, i) => ({ id, ...maps[0].place(i) }))")


def painted(page) -> int:
    """Pixels of the map that are not its ground."""
    script = """() => { const map = document.querySelector('.map canvas');
      const copy = Object.assign(document.createElement('canvas'), { width: map.width, height: map.height });
      const brush = copy.getContext('2d', { willReadFrequently: true });
      brush.drawImage(map, 0, 0);
      return brush.getImageData(0, 0, map.width, map.height).data.filter((x, i) => i % 4 === 3 && x > 0).length; }"""
    page.wait_for_timeout(100)
    return page.evaluate(script)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("way", WAYS)
def test_the_page_opens_and_fits_the_screen(opened, run, way, scheme, tmp_path):
    page = opened(run[1], way, scheme)
    assert page.inner_text("h1") == "150 samples in 9 clusters"
    assert "look at <b>this</b>" in page.inner_text("#warnings").lower()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert painted(page) > 1000
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 50_000
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_a_sample_is_found_by_its_id_and_explained(opened, run):
    fitted, path = run
    page = opened(path)
    page.fill("#search", "s17")
    assert page.locator("#found button").first.inner_text() == "s17"
    page.press("#search", "Enter")
    row = fitted.ids.index("s17")
    assert f"belongs to cluster {fitted.labels[row]}" in card(page)
    assert "sure" in card(page)
    assert re.search(r"(high|low) \w+ in (rna|protein)", card(page))
    assert "Second-best cluster" in card(page)
    assert "What decided, by view" in card(page)
    page.fill("#search", "nobody")
    assert page.inner_text("#found") == "No sample has this id."
    page.locator("[data-name=clusters] button.sample").first.click()
    own = np.flatnonzero(fitted.labels == 0)
    assert fitted.ids[own[np.argmax(fitted.confidence[own])]] in card(page)


@pytest.mark.parametrize("way", WAYS)
def test_whoever_searches_sees_the_answer(opened, run, way):
    """The card may lie below the map, and below the screen."""
    page = opened(run[1], way)
    for press in (
        lambda: (page.fill("#search", "s17"), page.press("#search", "Enter")),
        lambda: page.locator("[data-name=clusters] button.sample").first.click(),
    ):
        page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")
        press()
        page.wait_for_timeout(900)  # it scrolls gently
        card = page.locator("#lookup h3").bounding_box()
        assert 0 <= card["y"] <= WAYS[way][1] - card["height"]


def test_features_fit_a_narrow_screen(opened, run):
    page = opened(run[1], "narrow")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    cut = """[...document.querySelectorAll('[data-name^=features]')]
             .filter((one) => one.parentElement.scrollWidth > one.parentElement.clientWidth).length"""
    assert page.evaluate(cut) == 0


def test_hostile_ids_stay_text_wherever_they_are_shown(opened, run):
    page = opened(run[1])
    for name in HOSTILE:
        page.fill("#search", name)
        page.press("#search", "Enter")
        assert page.inner_text("#lookup h3") == name
    page.locator(".by").select_option(label="class")
    place = next(one for one in marks_of(page) if one["id"] == HOSTILE[0])
    page.locator(".map canvas").first.hover(position={"x": place["x"], "y": place["y"]})
    assert page.locator(".tip").inner_text()
    assert page.locator("main img, main b:has-text('this')").count() == 0
    assert page.evaluate("document.scripts.length") == 2


def test_the_map_is_hovered_pressed_zoomed_and_moved(opened, run):
    fitted, path = run
    page = opened(path)
    canvas = page.locator(".map canvas").first
    canvas.scroll_into_view_if_needed()
    place = marks_of(page)[20]
    canvas.hover(position={"x": place["x"], "y": place["y"]})
    lines = page.locator(".tip").inner_text().splitlines()
    row = fitted.ids.index(lines[0])
    assert lines[1].startswith(f"Cluster {fitted.labels[row]}, ")
    assert len(lines) == 3
    canvas.click(position={"x": place["x"], "y": place["y"]})
    assert page.inner_text("#lookup h3") == lines[0]
    page.get_by_label("Zoom in").click()
    assert page.evaluate("maps[0].zoom") == pytest.approx(1.5)
    canvas.hover(position={"x": 10, "y": 10})
    page.mouse.wheel(0, -100)
    page.wait_for_timeout(100)
    assert page.evaluate("maps[0].zoom") == pytest.approx(1.5)  # the page scrolls over a map that is not in use
    canvas.focus()
    canvas.hover(position={"x": 10, "y": 10})
    page.mouse.wheel(0, -100)
    page.wait_for_timeout(100)
    assert page.evaluate("maps[0].zoom") > 1.6
    before = page.evaluate("maps[0].center.x")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 100)
    page.mouse.up()
    assert page.evaluate("maps[0].center.x") < before
    page.get_by_label("Show all").click()
    assert page.evaluate("maps[0].zoom") == 1


def test_the_map_is_used_by_keyboard(opened, run):
    page = opened(run[1])
    page.locator(".map canvas").first.focus()
    for key, zoom in (("+", 1.5), ("-", 1), ("+", 1.5), ("0", 1)):
        page.keyboard.press(key)
        assert page.evaluate("maps[0].zoom") == pytest.approx(zoom)
    center = page.evaluate("maps[0].center.x")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("maps[0].center.x") > center
    page.keyboard.press("n")
    assert page.inner_text("#lookup h3") == page.evaluate("maps[0].run.points.id[0]")
    page.keyboard.press("p")
    assert page.inner_text("#lookup h3") == page.evaluate("maps[0].run.points.id.at(-1)")
    reached = page.evaluate(
        """[...document.querySelectorAll('a, button, select, input, summary, canvas')]
           .filter((one) => !one.disabled && one.tabIndex < 0 && one.closest('.legend canvas') === null).length"""
    )
    assert reached == 0


def test_every_colour_has_a_legend_and_changes_the_map(opened, run):
    page = opened(run[1])
    options = page.locator(".by option").all_inner_texts()
    cuts = [f"cut into {count}" for count in range(2, 10)]
    assert options == ["cluster", "confidence", *cuts, "missing views", "class", "age", "novelty"]
    for name in options:
        page.locator(".by").first.select_option(label=name)
        counts = page.evaluate("maps[0].coloring.members.map((one) => one.length)")
        assert sum(counts) == 150
        assert page.locator(".legend button").count() == sum(count > 0 for count in counts)
        assert painted(page) > 1000


def test_joined_clusters_are_named_in_the_legend(opened, tmp_path):
    """Which clusters a cut joins is read from the tree, by hand: 0 joins 1, then both join 2."""
    folder = write_run(tmp_path / "run", n=60, clusters=3)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"names": {"1": "birds"}}))
    write_report([folder], tmp_path / "report.html")
    page = opened(tmp_path / "report.html")
    page.locator(".by").first.select_option(label="cut into 2")
    assert [re.sub(r" \(\d+\)$", "", one) for one in page.locator(".legend button").all_inner_texts()] == [
        "Clusters 0, 1 (birds)",
        "Cluster 2",
    ]


def download(page, press) -> list[dict[str, str]]:
    with page.expect_download() as waited:
        press()
    with open(waited.value.path(), newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_lasso_and_a_group_are_selected_and_saved(opened, run):
    fitted, path = run
    page = opened(path)
    page.get_by_role("button", name="Lasso").click()
    canvas = page.locator(".map canvas").first
    canvas.scroll_into_view_if_needed()
    box, marks = canvas.bounding_box(), marks_of(page)
    half = box["width"] / 2
    corners = [(2, 2), (half, 2), (half, box["height"] - 2), (2, box["height"] - 2), (2, 3)]
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.mouse.down()
    for x, y in corners:
        page.mouse.move(box["x"] + x, box["y"] + y, steps=4)
    page.mouse.up()
    expected = {one["id"] for one in marks if one["x"] < half}
    assert f"{len(expected)} selected" in page.locator(".status").inner_text()
    save = page.get_by_role("button", name="Save selection as CSV")
    rows = download(page, save.click)
    assert {row["id"].removeprefix("'") for row in rows} == expected
    assert list(rows[0]) == ["id", "label", "confidence", "views", "class", "age", "novelty"]
    page.get_by_role("button", name="Clear selection").click()
    assert save.is_disabled()
    page.locator(".legend button").first.press("Enter")
    rows = download(page, save.click)
    assert {row["label"] for row in rows} == {"0"}
    assert len(rows) == (fitted.labels == 0).sum()
    assert page.locator(".legend button").first.get_attribute("aria-pressed") == "true"


def test_tables_are_sorted_and_saved(opened, run):
    page = opened(run[1])
    table = page.locator("[data-name=clusters]")
    head = table.locator("th button", has_text="Samples")
    for order, direction in ((1, "ascending"), (-1, "descending")):
        head.first.click()
        values = [int(one.get_attribute("data-value")) for one in table.locator("tbody tr td:nth-child(2)").all()]
        assert values == sorted(values, reverse=order < 0)
        assert table.locator("th").nth(1).get_attribute("aria-sort") == direction
    rows = download(page, table.locator("caption button").click)
    assert [int(row["Samples"]) for row in rows] == values


def test_print_opens_everything_on_white(opened, run):
    page = opened(run[1], scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate("[...document.querySelectorAll('details')].every((one) => one.open)")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")


def test_pictures_have_words(opened, run):
    page = opened(run[1])
    unnamed = page.evaluate(
        """[...document.querySelectorAll('svg, canvas')].filter((one) =>
           !one.getAttribute('aria-label') && !one.ariaLabel && one.ariaHidden !== 'true').length"""
    )
    assert unnamed == 0
    words = page.locator("#k svg.chart").first.get_attribute("aria-label")
    assert words == "The tree of splits; 2 of 3 stand"


def test_two_runs_stand_side_by_side(opened, tmp_path):
    folders = [write_run(tmp_path / name, n=80, seed=seed) for name, seed in (("one", 0), ("two", 1))]
    write_report(folders, tmp_path / "pair.html")
    page = opened(tmp_path / "pair.html")
    assert page.locator(".map").count() == 2
    page.locator("[data-name=moved] button.sample").first.click()
    assert card(page).count("sure") >= 2
    assert page.evaluate(
        "maps.map((map) => map.run.points.id[map.picked])[0] === maps[1].run.points.id[maps[1].picked]"
    )
    page.locator(".by").first.select_option(label="stayed or moved")
    assert page.locator(".map").first.locator(".legend button").count() == 2


def test_a_hundred_thousand_samples_stay_small_and_quick(opened, tmp_path):
    views = [f"view{v}" for v in range(6)]
    folder = write_run(tmp_path / "run", n=100_000, views=views, clusters=12)
    write_report([folder], tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size <= MOST_BYTES
    began = time.perf_counter()
    page = opened(tmp_path / "report.html")
    print(f"ready after {time.perf_counter() - began:.2f} s")
    assert page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") <= 2000
    assert "20,000 of 100,000 samples are shown" in page.locator(".status").inner_text()
    page.fill("#search", "s99999")
    page.press("#search", "Enter")
    assert "belongs to cluster" in card(page)  # it is known, whether it is drawn or not
