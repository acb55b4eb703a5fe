// A table that is wider than the page can be scrolled by keyboard, too.
window.addEventListener("load", () => {
  for (const frame of document.querySelectorAll(".md-typeset__scrollwrap")) {
    frame.tabIndex = 0;
  }
});
