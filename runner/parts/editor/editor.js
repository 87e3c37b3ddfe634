// What the page's text editor lacks for recipes: problems at their lines, proposals, and what a setting means where one points.
import * as CM from "nicegui-codemirror";

const told = CM.StateEffect.define();

function marks(problems, doc) {
  const found = [];
  for (const problem of problems) {
    if (problem.line < 1 || problem.line > doc.lines) continue;
    const line = doc.line(problem.line);
    const from = Math.min(line.to, line.from + problem.column - 1);
    const to = Math.min(line.to, from + problem.width);
    found.push(CM.Decoration.line({ class: `recipe-line-${problem.severity}` }).range(line.from));
    if (from < to) found.push(CM.Decoration.mark({ class: `recipe-${problem.severity}` }).range(from, to));
  }
  return CM.Decoration.set(found, true);
}

const shown = CM.StateField.define({
  create: () => ({ problems: [], marks: CM.Decoration.none }),
  update(value, change) {
    for (const effect of change.effects)
      if (effect.is(told)) return { problems: effect.value, marks: marks(effect.value, change.state.doc) };
    return change.docChanged ? { problems: value.problems, marks: value.marks.map(change.changes) } : value;
  },
  provide: (field) => CM.EditorView.decorations.from(field, (value) => value.marks),
});

async function ask(what, state, position) {
  const line = state.doc.lineAt(position);
  const place = { text: state.doc.toString(), line: line.number - 1, column: position - line.from };
  const answer = await fetch(what, { method: "POST", body: JSON.stringify(place) });
  return answer.ok ? await answer.json() : null;
}

// Paragraphs with `code` in them.
function written(text) {
  const box = document.createElement("div");
  for (const paragraph of text.split("\n\n")) {
    const line = box.appendChild(document.createElement("p"));
    paragraph.split("`").forEach((part, number) => {
      line.appendChild(number % 2 ? document.createElement("code") : document.createElement("span")).textContent = part;
    });
  }
  return box;
}

async function propose(context) {
  const word = context.matchBefore(/[\w.\/-]*/);
  if (!context.explicit && word.from === word.to && !context.matchBefore(/: $/)) return null;
  const found = await ask("proposals", context.state, context.pos);
  if (!found || !found.length) return null;
  const types = { section: "namespace", setting: "property", value: "constant" };
  const options = found.map((one) => ({
    label: one.label,
    apply: one.text,
    type: types[one.kind],
    info: one.says ? () => written(one.says) : undefined,
  }));
  return { from: word.from, options, validFor: /^[\w.\/-]*$/ };
}

async function explain(view, position) {
  const line = view.state.doc.lineAt(position);
  const problems = view.state.field(shown).problems.filter((problem) => problem.line === line.number);
  const meaning = await ask("meaning", view.state, position);
  if (!meaning && !problems.length) return null;
  const dom = document.createElement("div");
  dom.className = "recipe-tooltip";
  for (const problem of problems) {
    const box = dom.appendChild(written([problem.message, problem.hint].filter(Boolean).join("\n\n")));
    box.className = `recipe-told-${problem.severity}`;
  }
  if (meaning) {
    dom.appendChild(document.createElement("h4")).textContent = meaning.title;
    dom.appendChild(written(meaning.says));
  }
  return { pos: line.from, end: line.to, create: () => ({ dom }) };
}

const dark = matchMedia("(prefers-color-scheme: dark)");
let unsaved = false;
addEventListener("beforeunload", (event) => unsaved && event.preventDefault());

export function ask_before_leaving(element, asks) {
  unsaved = asks;
}

const viewOf = async (element) => element.editor ?? (await element.editorPromise);

export async function attach(element) {
  const save = { key: "Mod-s", preventDefault: true, run: () => (document.querySelector(".recipe-save")?.click(), true) };
  const extensions = [
    shown,
    CM.hoverTooltip(explain, { hoverTime: 250 }),
    CM.EditorState.languageData.of(() => [{ autocomplete: propose }]),
    CM.keymap.of([save]),
  ];
  const view = await viewOf(element);
  view.dispatch({ effects: CM.StateEffect.appendConfig.of(extensions) });
  const theme = () => element.setTheme(dark.matches ? "githubDark" : "githubLight");
  theme();
  dark.addEventListener("change", theme);
  view.dom.classList.add("recipe-attached");
}

export async function show(element, problems) {
  (await viewOf(element)).dispatch({ effects: told.of(problems) });
}

// Another text in place of the one that somebody else knows, written as if it were typed here. Half a letter is none: those
// beyond 16 bits are two characters.
export async function put(element, known, text) {
  const view = await viewOf(element);
  const { doc } = view.state;
  if (!view.state.toText(known).eq(doc)) return false;
  const old = doc.toString();
  const half = (letter) => letter >= "\ud800" && letter <= "\udfff";
  let [from, to, end] = [0, old.length, text.length];
  while (from < to && from < end && old[from] === text[from]) from++;
  while (to > from && end > from && old[to - 1] === text[end - 1]) to--, end--;
  while (from > 0 && half(old[from - 1])) from--;
  while (to < old.length && half(old[to])) to++, end++;
  view.dispatch({ changes: { from, to, insert: text.slice(from, end) } });
  return true;
}

export async function reveal(element, line, column) {
  const view = await viewOf(element);
  const found = view.state.doc.line(Math.min(line, view.state.doc.lines));
  const anchor = Math.min(found.to, found.from + Math.max(0, column - 1));
  view.dispatch({ selection: { anchor }, effects: CM.EditorView.scrollIntoView(anchor, { y: "center" }) });
  view.focus();
}
