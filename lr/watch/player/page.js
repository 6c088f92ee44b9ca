// Small tools: elements with text that is never markup, explanations, tokens.

const byId = (id) => document.getElementById(id);
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);
const plural = (count, word, more = "s") => `${count} ${word}${count === 1 ? "" : more}`;
const chance = (p) => (p >= 0.9995 ? "1.00" : p < 0.005 ? p.toExponential(0) : p.toFixed(2));
const textOf = (tokens) => tokens.map((token) => token[1]).join("").trim();

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

// The tokens of a step: the colour says who wrote each, the line below it how. Rejected draft
// tokens are struck through in front of the token that came instead.
function tokenElements(tokens, by) {
  const found = [];
  tokens.forEach(([id, piece, source, p, refused], place) => {
    for (const [draft, target, drafter, accept] of refused) {
      const tip = `proposed and rejected: ${draft}\ntarget's probability ${chance(target)}, the `
        + `drafter's ${chance(drafter)}: kept with probability ${chance(accept)}`;
      found.push(make("s.refused", { text: draft.slice(1, -1) || "↵", tip }));
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
