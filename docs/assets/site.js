// Draw the formulas of a page: those between \\( \\) and \\[ \\], which Markdown has marked.
document.addEventListener("DOMContentLoaded", () => {
  for (const formula of document.querySelectorAll(".arithmatex")) {
    const block = formula.tagName === "DIV";
    katex.render(formula.textContent.trim().slice(2, -2), formula, { displayMode: block });
  }
});
