"""Make the pictures in docs/images: python docs/make_screenshots.py, with the extra ``test`` and Chromium installed."""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import tape

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.browsing import Visit, chromium, served  # noqa: E402
from support.inspected import history  # noqa: E402

WIDE, TABLET, PHONE = (1280, 800), (820, 1000), (360, 740)
PICTURES = {
    "inspector": ("/t/trip", WIDE, "light"),
    "inspector-list": ("/", WIDE, "light"),
    "inspector-graph": ("/t/trip/graph", WIDE, "dark"),
    "inspector-context": ("/t/trip/context/22", TABLET, "light"),
    "inspector-usage": ("/t/trip/usage", TABLET, "dark"),
    "inspector-diff": ("/diff?a=trip@15&b=trip@16", TABLET, "light"),
    "inspector-phone": ("/t/trip@16", PHONE, "light"),
    "inspector-phone-log": ("/t/trip/log", PHONE, "dark"),
}


def main() -> None:
    """Write every picture."""
    folder = ROOT / "docs" / "images"
    folder.mkdir(exist_ok=True)
    ticks = itertools.count(1_790_000_000_000_000, 41_000_000)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        with tape.open(Path(scratch) / "trips.db", clock=lambda: next(ticks)) as store:
            history(store)
            with served(store, names=["trips"]) as site:
                for name, (address, (width, height), scheme) in PICTURES.items():
                    size = {"width": width, "height": height}
                    with Visit(browser, site, viewport=size, color_scheme=scheme, timezone_id="UTC") as visit:
                        page = visit.go(address)
                        page.screenshot(path=folder / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
