// Small tools: elements with text that is never markup, explanations, tokens.

const byId = (id) => document.getElementById(id);
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);
const plural = (count, word, more = "s") => `${count} ${word}${count === 1 ? "" : more}`;
const chance = (p) => (p >= 0.9995 ? "1.00" : p < 0.005 ? p.toExponential(0) : p.toFixed(2));
const textOf = (tokens) => tokens.filter(([, , source]) => source !== "refused")
  .map((token) => token[1]).join("").trim();

// An element: make("b.name", {text: "...", tip: "...", title: "..."}, [children]).
function make(kind, { text, tip, ...attributes } = {}, children = []) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  element.className = classes.join(" ");
  if (text !== undefined) element.textContent = text;
  if (tip) element.dataset.tip = tip;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// An SVG element; whose colour it has is a class.
function shape(tag, classes, attributes, tip) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  element.setAttribute("class", classes);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (tip) element.dataset.tip = tip;
  return element;
}

const SOURCES = {
  drawn: ["drawn", "written by the model itself, one token in one pass"],
  proposed: ["proposed and kept", "proposed by the drafter and accepted by the target"],
  residual: ["in place of a rejected draft token", "the target rejected it and wrote this one"],
  after: ["after the draft tokens", "all were kept, and the same pass gave one token more"],
};
const ORIGINS = {
  accepted: "a draft step that means the same as the target's own, kept in the draft's words",
  correction: "the target's step in place of a draft step that was rejected",
  bonus: "the target's step after a cycle in which all drafts were accepted; never judged",
  target: "a step that the target wrote, with no draft step to decide on",
};

// By kind of event: whose colour (null: the role's), its sign, the coarsest setting of "stops" that
// still stops there (0: every event, 1: tokens and steps, 2: steps only), the idea.
const KINDS = {
  draft: ["draft", "►", 2, "The draft writes from the same prefix as the target."],
  target: ["target", "►", 2, "One more row in the target's batch, from the same prefix."],
  judge: ["verifier", "►", 2, "Does the draft's step mean the same as the target's?"],
  drafted: ["draft", "■", 2, "The draft goes on from it without waiting for a verdict."],
  targeted: ["target", "■", 2, "It is compared with every draft step from this prefix."],
  judged: ["verifier", "?", 2, "It counts once everything before it is decided."],
  emit: ["accepted", "→", 2, "The root moves on; nothing is computed or copied for it."],
  cancel: ["rejected", "×", 2, "After a rejected step, or beside an accepted one."],
  release: ["rejected", "○", 1, "Blocks that no other branch holds are free again."],
  token: [null, "·", 1, "One token from one pass."],
  round: [null, "≡", 1, "Draft tokens are checked together in one pass."],
  written: [null, "■", 1, "A step ends at a blank line, at the end, or at its limit."],
  forward: [null, "▪", 0, "All rows pass through the model together."],
  verifier: ["verifier", "▪", 0, "One call for all pairs that wait."],
  end: ["accepted", "■", 2, ""],
  cache: ["cache", "▫", 0,
    "Blocks are shared until a branch writes into one; then that one is copied first."],
};
// By verdict, and by where a step came from: the colour and the sign.
const OUTCOMES = {
  aligned: ["verifier", "✓"], rejected: ["verifier", "✗"], accepted: ["accepted", "✓"],
  correction: ["target", "✗"], bonus: ["bonus", "+"], target: ["target", "•"],
};

// The tokens of a step: the colour says who wrote each, the line below it how. Rejected draft
// tokens are struck through in front of the token that came instead.
function tokenElements(tokens, by) {
  const found = [];
  tokens.forEach(([id, piece, source, p, q, accept], place) => {
    if (source === "refused") {
      const text = piece.trim() || "↵";
      const tip = `proposed and rejected: “${text}”\ntarget's probability ${chance(p)}, the `
        + `drafter's ${chance(q)}: kept with probability ${chance(accept)}`;
      found.push(make("s.refused", { text, tip }));
      return;
    }
    const text = place === tokens.length - 1 ? piece.replace(/\s+$/, "") : piece;
    const how = SOURCES[source] ? SOURCES[source].join(": ") : `written by the ${by}`;
    const tip = `“${piece.replace(/\n/g, "↵")}”, token ${id}\n${how}`
      + (p === null ? "" : `\nprobability ${chance(p)}`);
    found.push(make(`span.token.by-${by}.${source || "plain"}`, { text, tip }));
  });
  return found;
}

// Whatever has data-tip shows it on hover, focus and tap.
class Tips {
  constructor(box) {
    this.box = box;
    for (const kind of ["pointerover", "pointerdown", "focusin", "focusout", "scroll"]) {
      document.addEventListener(kind, (event) => this.of(event), true);
    }
  }

  of({ type, target }) {
    const told = type.startsWith("pointer")
      || (type === "focusin" && target.matches(":focus-visible"));
    const tipped = told && target.closest && target.closest("[data-tip]");
    this.box.hidden = !tipped;
    if (!tipped) return;
    const place = tipped.getBoundingClientRect();
    this.box.textContent = tipped.dataset.tip.replace(/\n\s+/g, " ");
    const { width, height } = this.box.getBoundingClientRect();
    const left = clamp((place.left + place.right) / 2 - width / 2, 8, innerWidth - width - 8);
    const below = place.bottom + 8 + height < innerHeight;
    this.box.style.left = `${left}px`;
    this.box.style.top = `${below ? place.bottom + 8 : Math.max(8, place.top - height - 8)}px`;
  }
}

// A moment or a length of time in the clock's unit, short.
function clockText(time, unit) {
  if (unit !== "second") {
    return plural(+time.toFixed(unit === "turn" ? 0 : 2), unit);
  }
  if (Math.abs(time) >= 1) return `${time.toFixed(2)} s`;
  return `${(time * 1000).toFixed(Math.abs(time) < 0.1 ? 1 : 0)} ms`;
}
