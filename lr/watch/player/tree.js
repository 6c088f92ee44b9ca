// The tree: a box per node, one column per step. Boxes have the height of their words and are kept
// by name, so that the tree slides when the root moves on. What was cancelled stays for a while,
// paler and paler.

// Size of words and lines in a card: the first of these with which everything is in sight.
// Last come lines that keep a step's end, then its last number, in as many columns as it takes.
const DENSITIES = [[1.2], [1], [0.92], [0.86], [0.84], [0.84, 1, 4], [0.84, 1, 3], [0.84, 1, 2],
  [0.84, 1, 1], [0.84, 2, 1]];

class Tree {
  constructor(states, panel) {
    const [scroller, field, lines] = [".scroll", ".field", "svg"].map((one) =>
      panel.querySelector(one));
    Object.assign(this, { states, field, lines, scroller, boxes: new Map() });
  }

  show(n, time, fade) {
    const live = this.states.treeAt(this.states.rootAt(n), n);
    const past = this.states.emittedAt(n).slice(-1)[0];
    const first = live ? live.index : past ? past.index + 1 : 0;
    const shown = new Map();
    if (past) shown.set("past", { past, column: 0, kids: [], opacity: 1 });
    const add = (box, opacity, before) => {
      if (shown.has(box.name) || (past && box.index < past.index)) return;
      const column = box.index - first + (past ? 1 : 0), made = { ...box, column, opacity, before };
      shown.set(box.name, made);
      box.kids.forEach((kid) => add(kid, opacity, made));
    };
    if (live) add(live, 1, shown.get("past"));
    for (const name of this.states.plain ? [] : this.states.goneBetween(n, time - fade)) {
      const age = (time - this.states.nodes[name].gone[1]) / (fade || 1);
      const { index } = this.states.nodes[name], cards = this.states.cardsAt(name, n);
      if (cards.length && age >= 0 && name !== (live && live.name)) {
        add({ name, index, cards, kids: [], ghost: true }, clamp(0.7 * (1 - age), 0.06, 0.7));
      }
    }
    const signature = JSON.stringify([...shown].map(([name, box]) => [name, box.column, box.ghost,
      box.past ? box.past.at : box.cards.map((c) => [c.by, c.standing, c.tokens.length, c.done])]));
    if (signature !== this.signature) {
      this.signature = signature;
      this.fill(shown, live);
      this.arrange(shown);
    }
    for (const [name, box] of shown) this.boxes.get(name).style.opacity = box.opacity;
  }

  fill(shown, live) {
    for (const [name, box] of this.boxes) {
      if (!shown.has(name)) { box.remove(); this.boxes.delete(name); }
    }
    for (const [name, box] of shown) {
      if (!this.boxes.has(name)) this.boxes.set(name, this.field.appendChild(make("div.node")));
      box.element = this.boxes.get(name);
      const root = live && live.name === name, { index } = box.past || box;
      const kind = root ? "root" : box.past ? "past" : box.ghost ? "ghost" : "";
      const what = { root: "root · ", past: "decided · " }[kind] || "";
      const tip = root ? `The root: everything before step ${index} is decided.` : "";
      const head = make("div.name", { tip }, [make("b", { text: `${what}step ${index}` }),
        make("span", { text: box.past ? "" : `node ${name}` })]);
      box.element.className = `node ${kind}`;
      box.element.replaceChildren(head, ...(box.past ? this.pastCards(box.past)
        : box.cards.map((card) => this.card(card, box))));
    }
  }

  card(card, box) {
    const [sign, label, means] = this.states.standings[card.standing];
    const state = card.standing.toLowerCase(), busy = ["writing", "asked"].includes(state);
    const child = this.states.nodes[card.name], draft = card.by === "draft";
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
    const words = make("div.words", {}, [make("div", {}, tokenElements(tokens, by)),
      make("div.result", { text: `… ${result}` })]);
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
      const token = [["", past.rejected, "", null]];
      cards.push(this.cardElement("draft", "rejected", "✗ rejected", token, tip));
    }
    const state = past.by === "draft" ? "aligned" : "written";
    return [...cards, this.cardElement(past.by, state, label, past.tokens, tip)];
  }

  // Chooses the size of words, then puts every box below what stands in its column already, but not
  // above the box before it. In the last size boxes that do not fit below each other go on in a
  // further column, and the root is below the last decided step.
  arrange(shown) {
    const unit = rem(), { clientWidth, clientHeight } = this.scroller, boxes = [...shown.values()];
    const columns = Math.max(2, ...boxes.map((box) => box.column + 1));
    const room = this.states.plain ? 2 : Math.min(Math.max(columns, 3), this.states.depth + 2);
    const crowd = boxes.filter((box) => !box.ghost).length > columns;
    let wide = 0, height = 0;
    for (const [size, split, lines] of DENSITIES) {
      const pack = split > 1, gap = (pack ? 0.8 : 1.9) * unit, bottoms = [0];
      if (pack && !crowd) break;
      wide = pack ? clamp(clientWidth / boxes.length - gap, 6.4 * unit, 12 * unit)
        : clamp(clientWidth / room - gap, 9.6 * unit, 19 * unit);
      this.field.style.setProperty("--column", `${wide}px`);
      this.field.style.setProperty("--words", `${size}em`);
      this.field.style.setProperty("--lines", lines);
      this.field.classList.toggle("compact", Boolean(split));
      this.field.classList.toggle("single", lines === 1);
      let at = 0, last = null, bottom = 0;
      for (const box of pack ? boxes.sort((one, two) => one.column - two.column) : boxes) {
        const tall = box.element.offsetHeight, full = (bottoms[at] || 2) + tall > clientHeight;
        const apart = last && last.column > 0 && last.column !== box.column && !box.ghost;
        if (!pack) at = box.column; else if (apart || (full && bottoms[at])) at += 1;
        box.top = Math.max(bottoms[at] || 2, (!pack && box.before && box.before.top) || 2);
        box.left = at * (wide + gap) + 2;
        bottoms[at] = box.top + tall + (pack ? 8 : 10);
        if (!box.ghost) bottom = Math.max(bottom, bottoms[at]);
        last = box;
      }
      height = Math.max(...Object.values(bottoms));
      if (bottom <= clientHeight) break;
    }
    for (const { element: { style }, left, top } of boxes) {
      Object.assign(style, { left: `${left}px`, top: `${top}px` });
    }
    const end = Math.max(0, ...boxes.map((box) => box.left + wide + 6));
    Object.assign(this.field.style, { width: `${end}px`, height: `${height}px` });
    this.link(boxes, wide);
  }

  // A curve from each draft step, or the last decided step, to the box that follows it.
  link(boxes, wide) {
    const linked = boxes.filter((box) => box.before);
    this.lines.replaceChildren(...linked.map(({ name, left, top, before }) => {
      const at = before.past ? -1
        : before.cards.findIndex((card) => card.by === "draft" && card.name === name);
      const card = [...before.element.children].slice(1).at(at), x = before.left + wide;
      const y = before.top + card.offsetTop + card.offsetHeight / 2, to = top + 0.8 * rem();
      const middle = (x + left) / 2;
      const d = `M${x} ${y} C${middle} ${y} ${middle} ${to} ${left} ${to}`;
      return shape("path", "link", { d });
    }));
  }
}
