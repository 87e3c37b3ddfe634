"use strict";
// Shows the values of a chart where the pointer is, or where the arrow keys have gone.
for (const figure of document.querySelectorAll("figure[data-x0]")) {
  const drawing = figure.querySelector("svg"), rule = figure.querySelector(".rule");
  const box = drawing.viewBox.baseVal, said = figure.querySelector("output");
  const [x0, x1, left, right] = ["x0", "x1", "left", "right"].map((name) => Number(figure.dataset[name]));
  const lines = [...figure.querySelectorAll("path[data-values]")].map((path) => ({
    name: path.dataset.name, points: JSON.parse(path.dataset.values),
  }));
  const steps = [...new Set(lines.flatMap((line) => line.points.map((point) => point[0])))].sort((a, b) => a - b);
  let at = steps.length - 1;
  const nearest = (points, x) => points.reduce((best, point) => Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best);
  const show = () => {
    const x = steps[at], place = left + (x - x0) / ((x1 - x0) || 1) * (right - left);
    rule.setAttribute("x1", place);
    rule.setAttribute("x2", place);
    rule.removeAttribute("visibility");
    said.textContent = `step ${x.toLocaleString("en")}: ` + lines.map((line) => {
      const point = nearest(line.points, x);
      const where = point[0] === x ? "" : ` (step ${point[0].toLocaleString("en")})`;
      return `${line.name} ${Number(point[1].toPrecision(5)).toLocaleString("en", { maximumSignificantDigits: 5 })}${where}`;
    }).join(", ");
  };
  drawing.addEventListener("pointermove", (event) => {
    const edge = drawing.getBoundingClientRect();
    const place = (event.clientX - edge.left) / edge.width * box.width;
    const x = x0 + (place - left) / (right - left) * (x1 - x0);
    at = steps.reduce((best, step, index) => Math.abs(step - x) < Math.abs(steps[best] - x) ? index : best, 0);
    show();
  });
  drawing.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (way) {
      at = Math.min(steps.length - 1, Math.max(0, at + way));
      show();
      event.preventDefault();
    }
  });
  drawing.addEventListener("focus", show);
}
