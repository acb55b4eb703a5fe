"""The site that `make docs` built, in a browser."""

import pytest

from views import DESK, PHONE, SITE

pytestmark = pytest.mark.browser
LOOKED_AT = (
    "index.html",
    "trust.html",
    "paper.html",
    "reference/index.html",
    "reference/samplers/sghmc.html",
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_page_reads_well(visit, look, site, name, width, scheme):
    look(visit(f"{site}/{name}", width, scheme))


def test_every_page_opens_in_peace(visit, site):
    names = [path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html")]
    page = visit(f"{site}/index.html")
    for name in names:
        if name != "404.html":  # its addresses are absolute
            page.goto(f"{site}/{name}", wait_until="load")
            assert page.locator("h1").count() == 1, name


def test_navigation_leads_to_a_page(visit, site):
    page = visit(f"{site}/index.html")
    page.locator("nav.md-nav--primary a[href='trust.html']").click()
    page.wait_for_url(f"{site}/trust.html")
    assert page.locator("h1").is_visible()


def test_search_finds_by_keyboard(visit, site):
    page = visit(f"{site}/index.html")
    page.keyboard.press("/")
    page.get_by_role("textbox", name="Search").press_sequentially("friction", delay=20)
    page.locator("a.md-search-result__link").first.wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/*.html?h=*")
    assert page.locator("main").get_by_text("friction").count()


def test_the_theme_can_be_chosen(visit, site):
    page = visit(f"{site}/index.html")
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    page.get_by_title("Switch to dark mode").click()
    assert page.evaluate(ground) != before
