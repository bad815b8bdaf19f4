"""Takes pictures of pages for the documentation, in light or in dark, small enough for a repository.

    python tools/page_shots.py docs/images page.html=replay-light bisect.html=bisect-dark

Needs selenium, Pillow, and chromium with chromedriver on the PATH.
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

COLOURS = 128
"""Of a picture's palette: pages have few, and a picture of them is a third of the size."""


def shoot(browser: webdriver.Chrome, page: Path, out: Path, height: int) -> int:
    """Write the top of a page as a picture, in the scheme that the picture's name ends with; returns its bytes."""
    browser.set_window_size(1000, height)
    features = [{"name": "prefers-color-scheme", "value": out.stem.rpartition("-")[2]}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen", "features": features})
    browser.get(page.absolute().as_uri())
    picture = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(out, optimize=True)
    return out.stat().st_size


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("pages", nargs="+", metavar="PAGE=NAME-SCHEME")
    parser.add_argument("--height", type=int, default=1150)
    asked = parser.parse_args()
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        for pair in asked.pages:
            page, _, name = pair.partition("=")
            print(f"{name}: {shoot(browser, Path(page), asked.folder / f'{name}.png', asked.height)} bytes")
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
