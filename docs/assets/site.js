// Draw the formulas of a page: those between \\( \\) and \\[ \\], which Markdown has marked.
document.addEventListener("DOMContentLoaded", () => {
  for (const formula of document.querySelectorAll(".arithmatex")) {
    const block = formula.tagName === "DIV";
    katex.render(formula.textContent.trim().slice(2, -2), formula, { displayMode: block });
  }
});
// On a narrow screen a picture keeps at least half its size, so that its letters can be read, and is scrolled.
for (const picture of document.querySelectorAll(".md-typeset p > img")) {
  const mark = () => {
    picture.parentElement.classList.add("wide-picture");
    picture.style.setProperty("--half", `${picture.naturalWidth / 2}px`);
  };
  picture.complete ? mark() : picture.addEventListener("load", mark);
}
