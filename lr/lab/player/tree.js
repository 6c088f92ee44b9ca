// The tree: a box per node, one column per step. Boxes have the height of their words and are kept
// by name, so that the tree slides when the root moves on. What was cancelled stays for a while,
// paler and paler.

// Size of words and lines in a card: the first of these with which everything is in sight.
// Last come lines that keep a step's end, then its last number, in as many columns as it takes.
const DENSITIES = [[1.2], [1], [0.92], [0.86], [0.84], [0.84, 1, 4], [0.84, 1, 3], [0.84, 1, 2],
  [0.84, 1, 1], [0.84, 2, 1]];

class Tree {
  constructor(film, panel) {
    const [scroller, field, lines] = [".scroll", ".field", "svg"].map((one) =>
      panel.querySelector(one));
    Object.assign(this, { film, field, lines, scroller, boxes: new Map() });
  }

  show(n, time, fade) {
    const live = this.film.treeAt(this.film.rootAt(n), n);
    const past = this.film.emittedAt(n).slice(-1)[0];
    const first = live ? live.index : past ? past.index + 1 : 0;
    const shown = new Map();
    if (past) shown.set("past", { past, column: 0, kids: [], opacity: 1 });
    const add = (box, opacity) => {
      if (shown.has(box.name) || (past && box.index < past.index)) return;
      const column = box.index - first + (past ? 1 : 0);
      shown.set(box.name, { ...box, column, opacity });
      box.kids.forEach((kid) => add(kid, opacity));
    };
    if (live) add(live, 1);
    for (const name of this.film.plain ? [] : this.film.goneBetween(n, time - fade)) {
      const age = (time - this.film.nodes[name].gone[1]) / (fade || 1);
      const { index } = this.film.nodes[name], cards = this.film.cardsAt(name, n);
      if (cards.length && age >= 0 && name !== (live && live.name)) {
        add({ name, index, cards, kids: [], ghost: true }, clamp(0.7 * (1 - age), 0.06, 0.7));
      }
    }
    const signature = JSON.stringify([...shown].map(([name, box]) => [name, box.column, box.ghost,
      box.past ? box.past.at : box.cards.map((c) => [c.by, c.standing, c.tokens.length, c.done])]));
    if (signature !== this.signature) {
      this.signature = signature;
      this.fill(shown, live);
      this.arrange(shown, live, past);
    }
    for (const [name, box] of shown) this.boxes.get(name).style.opacity = box.opacity;
  }

  fill(shown, live) {
    for (const [name, box] of this.boxes) {
      if (!shown.has(name)) { box.remove(); this.boxes.delete(name); }
    }
    for (const [name, box] of shown) {
      if (!this.boxes.has(name)) this.boxes.set(name, this.field.appendChild(make("div.node")));
      const element = this.boxes.get(name), root = live && live.name === name;
      const kind = root ? " root" : box.past ? " past" : box.ghost ? " ghost" : "";
      element.className = `node${kind}`;
      const index = box.past ? box.past.index : box.index;
      const title = root ? `root · step ${index}` : box.past ? `decided · step ${index}`
        : `step ${index}`;
      const head = make("div.name", {}, [make("b", { text: title }),
        make("span", { text: box.past ? "" : `node ${name}` })]);
      if (root) head.dataset.tip = `The root: everything before step ${index} is decided.`;
      element.replaceChildren(head, ...(box.past ? this.pastCards(box.past)
        : box.cards.map((card) => this.card(card, box))));
    }
  }

  card(card, box) {
    const [sign, label, means] = this.film.standings[card.standing];
    const state = card.standing.toLowerCase(), busy = ["writing", "asked"].includes(state);
    const child = this.film.nodes[card.name], draft = card.by === "draft";
    let tip = `${draft ? "Draft" : "Target"} step ${box.index} ${means}.`;
    if (textOf(card.tokens)) tip += `\n“${textOf(card.tokens)}”`;
    if (draft && ["aligned", "rejected"].includes(state)) tip += `\nVerdict: ${child.why}`;
    tip += draft ? `\nIt leads from node ${box.name} to node ${card.name}.` : "";
    const lost = box.ghost && draft && state === "aligned" && !child.kept ? ", discarded" : "";
    return this.cardElement(card.by, `${state}${busy ? ".busy" : ""}`, `${sign} ${label}${lost}`,
      card.tokens, tip);
  }

  cardElement(by, classes, label, tokens, tip) {
    const [result] = /\d+(?=\D*$)/.exec(textOf(tokens)) || textOf(tokens).split(" ");
    const words = make("div.words", {}, this.film.silent ? [] : [make("div", {},
      tokenElements(tokens, by)), make("div.result", { text: `… ${result}` })]);
    const [sign, ...means] = label.split(" ");
    const head = make("div.head", {}, [make("span", { text: by }),
      make("span.state", { text: sign }, [make("span", { text: ` ${means.join(" ")}` })])]);
    return make(`div.card.${by}.${classes}`, { tip }, [head, words]);
  }

  // The last decided step, after the draft step that it replaced.
  pastCards(past) {
    const tip = `Decided. Step ${past.index}, ${past.origin}: ${ORIGINS[past.origin]}.`
      + (past.why ? `\nVerdict: ${past.why}` : "");
    const label = `${past.mark} ${past.origin}`, cards = [];
    if (past.rejected !== null) {
      const token = [["", past.rejected, "", null, []]];
      cards.push(this.cardElement("draft", "rejected", "✗ rejected", token, tip));
    }
    const state = past.by === "draft" ? "aligned" : "written";
    return [...cards, this.cardElement(past.by, state, label, past.tokens, tip)];
  }

  // Chooses the size of words, then puts every box below what stands in its column already, but not
  // above the box before it.
  arrange(shown, live, past) {
    const unit = rem(), { clientWidth: width, clientHeight } = this.scroller;
    const columns = Math.max(2, ...[...shown.values()].map((box) => box.column + 1));
    const room = this.film.plain ? 2 : Math.min(Math.max(columns, 3), this.film.depth + 2);
    const places = new Map(), lefts = new Map();
    const crowd = [...shown.values()].filter((box) => !box.ghost).length > columns;
    let column = 0, gap = 0;
    for (const [size, split, lines] of this.film.silent ? [[1, 1, 1]] : DENSITIES) {
      if (split > 1 && !crowd) break;
      gap = (split > 1 ? 0.8 : 1.9) * unit;
      column = split > 1 ? 6.4 * unit : clamp(width / room - gap, 9.6 * unit, 19 * unit);
      this.field.style.setProperty("--column", `${column}px`);
      this.field.style.setProperty("--words", `${size}em`);
      this.field.style.setProperty("--lines", lines);
      this.field.classList.toggle("compact", Boolean(split));
      this.field.classList.toggle("single", lines === 1);
      const heights = new Map([...shown.keys()].map((name) => [name,
        this.boxes.get(name).offsetHeight]));
      const bottoms = new Map();
      places.clear();
      const place = (name, highest) => {
        const box = shown.get(name);
        if (!box || places.has(name)) return;
        const top = Math.max(highest, bottoms.get(box.column) || 2);
        places.set(name, top);
        bottoms.set(box.column, top + heights.get(name) + 10);
        box.kids.forEach((kid) => place(kid.name, top));
      };
      place("past", 2);
      if (live) place(live.name, 2);
      this.bottom = Math.max(0, ...bottoms.values());
      for (const name of shown.keys()) place(name, 2);
      this.spread(shown, heights, places, lefts, split > 1 ? clientHeight : Infinity);
      this.bottom = split > 1 ? this.height : this.bottom;
      for (const [name, at] of lefts) lefts.set(name, at * (column + gap) + 2);
      if (this.bottom <= clientHeight) break;
    }
    const left = (box) => lefts.get(box.past ? "past" : box.name);
    for (const [name, top] of places) {
      const { style } = this.boxes.get(name);
      style.left = `${left(shown.get(name))}px`;
      style.top = `${top}px`;
    }
    const wide = Math.max(...[...shown.values()].map((box) => left(box) + column + 6), 0);
    Object.assign(this.field.style, { width: `${wide}px`, height: `${this.height}px` });
    this.link(shown, places, left, column, live, past);
  }

  // Gives every box its column. Where `most` bounds the height, boxes that do not fit below each
  // other go on in a further column, and the root is below the last decided step.
  spread(shown, heights, places, lefts, most) {
    if (most === Infinity) {
      for (const name of places.keys()) lefts.set(name, shown.get(name).column);
      this.height = Math.max(0, ...[...places].map(([name, top]) => top + heights.get(name) + 10));
      return;
    }
    const order = [...places.keys()].sort((a, b) => shown.get(a).column - shown.get(b).column);
    let at = 0, y = 2, last = null;
    this.height = 0;
    for (const name of order) {
      const { column, ghost } = shown.get(name), apart = last !== null && column !== last;
      if ((apart && last > 0 && !ghost) || (y > 2 && y + heights.get(name) > most)) {
        at += 1;
        y = 2;
      }
      places.set(name, y);
      lefts.set(name, at);
      y += heights.get(name) + 8;
      this.height = Math.max(this.height, y);
      last = column;
    }
  }

  // A curve from each draft step to the box that follows it.
  link(shown, places, left, column, live, past) {
    const curves = [], half = 0.8 * rem();
    const curve = (x, y, toX, toY) => {
      const middle = (x + toX) / 2;
      const d = `M${x} ${y} C${middle} ${y} ${middle} ${toY} ${toX} ${toY}`;
      curves.push(shape("path", "link", { d }));
    };
    const middleOf = (element) => element.offsetTop + element.offsetHeight / 2;
    if (live && past) {
      const from = places.get("past") + middleOf(this.boxes.get("past").lastChild);
      curve(left(shown.get("past")) + column, from, left(shown.get(live.name)), 2 + half);
    }
    for (const [name, box] of shown) {
      for (const kid of box.kids) {
        const at = box.cards.findIndex((card) => card.by === "draft" && card.name === kid.name);
        const from = places.get(name) + middleOf(this.boxes.get(name).children[at + 1]);
        const to = places.get(kid.name) + half;
        curve(left(box) + column, from, left(shown.get(kid.name)), to);
      }
    }
    this.lines.replaceChildren(...curves);
  }
}
