// MathJax 3.2.2 lies beside this file, so that formulas need no network.
window.MathJax = {
  loader: { load: ["core", "input/tex", "output/chtml"] },
  tex: {
    inlineMath: [["\\(", "\\)"]],
    displayMath: [["\\[", "\\]"]],
  },
  options: {
    ignoreHtmlClass: ".*|",
    processHtmlClass: "arithmatex",
  },
};
