// Small tools for the page: elements with text that is never markup, explanations on hover and tap, colours of the theme.

const byId = (id) => document.getElementById(id);

// An element: make("b", "name", "text", {title: "..."}, [children]). Text is set as text.
function make(tag, classes, text, attributes, children) {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  if (text !== undefined && text !== null) element.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  for (const child of children || []) element.append(child);
  return element;
}

const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

// The colours of the present theme, read once per theme.
class Palette {
  constructor() {
    this.read();
  }

  read() {
    const style = getComputedStyle(document.documentElement);
    this.font = getComputedStyle(document.body).fontFamily;
    for (const name of ["paper", "panel", "ink", "soft", "line", "faint", "draft", "target", "verifier", "accepted", "rejected", "cache"]) {
      this[name] = style.getPropertyValue(`--${name}`).trim();
      this[`${name}Wash`] = style.getPropertyValue(`--${name}-wash`).trim();
    }
  }
}

// A canvas that is as sharp as the screen; `paint(context, width, height)` in CSS pixels.
function paintOn(canvas, height, paint) {
  const width = canvas.parentElement.clientWidth, ratio = window.devicePixelRatio || 1;
  const pixels = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) {
    [canvas.width, canvas.height] = pixels;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  paint(context, width, height);
}

function hatch(context, x, y, width, height, colour) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = x - height; at < x + width; at += 5) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}

// Explanations: whatever has data-tip shows it on hover, focus and tap; a canvas is asked with `explain(x, y)`.
class Tips {
  constructor(box) {
    this.box = box;
    this.canvases = new Map();
    document.addEventListener("pointerover", (event) => this.of(event));
    document.addEventListener("pointermove", (event) => this.canvases.has(event.target) && this.of(event));
    document.addEventListener("pointerdown", (event) => this.of(event));
    document.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && this.of(event));
    document.addEventListener("focusout", () => this.hide());
    document.addEventListener("scroll", () => this.hide(), true);
  }

  explains(canvas, explain) {
    this.canvases.set(canvas, explain);
    canvas.addEventListener("pointerleave", () => this.hide());
  }

  of(event) {
    const explain = this.canvases.get(event.target);
    if (explain) {
      const box = event.target.getBoundingClientRect();
      const text = explain(event.clientX - box.left, event.clientY - box.top);
      return text ? this.show(text, { left: event.clientX, right: event.clientX, top: event.clientY - 8, bottom: event.clientY + 16 }) : this.hide();
    }
    const holder = event.target.closest ? event.target.closest("[data-tip]") : null;
    return holder ? this.show(holder.dataset.tip, holder.getBoundingClientRect()) : this.hide();
  }

  show(text, place) {
    this.box.textContent = text;
    this.box.hidden = false;
    const { width, height } = this.box.getBoundingClientRect();
    const left = clamp((place.left + place.right) / 2 - width / 2, 8, innerWidth - width - 8);
    const below = place.bottom + 8 + height < innerHeight;
    this.box.style.left = `${left}px`;
    this.box.style.top = `${below ? place.bottom + 8 : Math.max(8, place.top - height - 8)}px`;
  }

  hide() {
    this.box.hidden = true;
  }
}

// The tokens of a step as elements: the colour says who wrote each, the line below it how; rejected guesses stand struck through before
// the token that came instead. `by`: draft or target.
function tokenElements(tokens, by, done) {
  const found = [];
  tokens.forEach((token, place) => {
    for (const guess of token.refused) {
      const tip = `guessed and rejected: ${quoted(guess.piece)}\ntarget's probability ${percent(guess.p)}, the drafter's ${percent(guess.q)}; it would have stayed with probability ${percent(guess.accept)}`;
      found.push(make("s", "refused", guess.piece.trim() || "⏎", { "data-tip": tip }));
    }
    const text = done && token.whole !== undefined ? token.whole : token.piece;
    const last = place === tokens.length - 1;
    const known = SOURCES[token.source];
    const element = make("span", `token by-${by} ${token.source}`, last ? text.replace(/\s+$/, "") : text);
    const chance = token.p === null ? "" : `\nprobability ${percent(token.p)}`;
    element.dataset.tip = `${quoted(text)}, token ${token.id}\n${known ? `${known[0]}: ${known[1]}` : `written by the ${by}`}${chance}`;
    found.push(element);
  });
  return found;
}
