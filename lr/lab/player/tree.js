// The tree: a box per node, with the draft's alternatives and the target's own step behind it; one column per step. Parts that were
// cancelled stay for a while, paler and paler. Boxes are kept by name, so that the tree slides when the root moves on.

const STATES = {
  writing: "is being written", there: "is there; it waits for the other side or for the verifier", judging: "is with the verifier", aligned: "means the same as the target's",
  rejected: "does not mean the same as the target's", cancelled: "was cancelled: it stood below a rejected step, or beside an accepted one", failed: "will never come",
  unsure: "waits for the target's step", waiting: "is not begun",
};

class Tree {
  constructor(film, field, lines, scroller) {
    Object.assign(this, { film, field, lines, scroller, boxes: new Map(), signature: "" });
  }

  // How a draft step stands after n events: [state, label].
  draftState(child, n, busy) {
    if (child.failed < n) return ["failed", "∅ none"];
    if (child.judged < n) return child.verdict.aligned ? ["aligned", "✓ aligned"] : ["rejected", "✗ not aligned"];
    if (child.until < n && child.accepted >= n) return ["cancelled", "✕ cancelled"];
    if (busy.has(`judge ${child.name}`) || busy.has(`score ${child.name}`)) return ["judging", "with the verifier"];
    if (child.unsure < n) return ["unsure", "? waits"];
    if (child.draft && child.draft.done(n)) return ["there", "■ written"];
    return busy.has(`draft ${child.name}`) ? ["writing", "writing"] : ["cancelled", "✕ cancelled"];
  }

  targetState(node, n, busy) {
    if (node.target && node.target.done(n)) return ["there", "■ written"];
    if (busy.has(`target ${node.name}`) || (node.target && node.until >= n)) return ["writing", "writing"];
    return ["cancelled", "✕ cancelled"];
  }

  // The cards of a node's box.
  cards(node, n, busy) {
    const cards = this.film.childrenOf(node, n).map((child) => {
      const [state, label] = this.draftState(child, n, busy);
      return { by: "draft", step: child.draft, state, label, child, name: child.name };
    });
    const begun = busy.has(`target ${node.name}`) || (node.target && node.target.from < n);
    if (begun) {
      const [state, label] = this.targetState(node, n, busy);
      cards.push({ by: "target", step: node.target, state, label, child: null, name: node.name });
    }
    return cards;
  }

  // The boxes to show: {node, cards, kids, ghost}; live ones hang below the root, recent ones that are gone below what they hung from.
  boxOf(name, n, busy, oldest, seen) {
    const node = this.film.nodes.get(name);
    const gone = node !== undefined && node.until < n;
    if (!node || seen.has(name) || (gone && node.untilTime < oldest)) return null;
    const cards = this.cards(node, n, busy);
    if (!cards.length && name !== this.film.rootAt(n)) return null;
    seen.add(name);
    const kids = cards.filter((card) => card.child).map((card) => this.boxOf(card.name, n, busy, oldest, seen)).filter(Boolean);
    return { node, cards, kids, gone, age: gone ? node.untilTime : null };
  }

  forest(n, time, fade) {
    const busy = new Set(this.film.worksAt(n).map((work) => `${work.kind} ${work.node}`));
    const seen = new Set(), oldest = time - fade, root = this.film.rootAt(n);
    const over = this.film.nodes.has(root) && this.film.nodes.get(root).until < n; // the chain has ended: no root is left
    const forest = over ? [] : [this.boxOf(root, n, busy, oldest, seen)];
    const recent = [...this.film.nodes.values()].filter((node) => node.until < n && node.untilTime >= oldest && node.fromTime <= time && (over || node.name !== root));
    recent.sort((a, b) => a.index - b.index || a.from - b.from);
    for (const node of this.film.plain ? [] : recent) forest.push(this.boxOf(node.name, n, busy, oldest, seen));
    return forest.filter(Boolean);
  }

  show(n, time, fade) {
    const forest = this.forest(n, time, fade), unit = rem();
    const emitted = this.film.emittedAt(n), past = emitted[emitted.length - 1];
    const live = forest.length && !forest[0].gone ? forest[0] : null;
    const first = live ? live.node.index : past ? past.index + 1 : 0;
    const lines = this.linesThatFit(forest, unit);
    const column = this.columnWidth(unit), gap = 1.9 * unit;
    const size = { column, gap, card: (1.72 + 1.08 * lines) * unit, name: 1.95 * unit };
    const left = (index) => (index - first + (past ? 1 : 0)) * (size.column + size.gap) + 2;
    const about = { shown: new Set(), links: [], bottoms: new Map(), n, time, fade };
    if (past) this.pastBox(past, n, left(first - 1), size, about, live);
    for (const tree of forest) if (tree.node.index >= first - (past ? 1 : 0)) this.place(tree, 2, left, size, about);
    for (const [name, box] of this.boxes) if (!about.shown.has(name)) { box.remove(); this.boxes.delete(name); }
    this.finish(forest, left, size, about, lines);
  }

  // The whole window in sight, if that leaves the boxes wide enough to be read.
  columnWidth(unit) {
    const columns = this.film.plain ? 2 : this.film.header.depth + 2;
    return clamp(this.scroller.clientWidth / columns - 1.9 * unit - 2, 11 * unit, 15.5 * unit);
  }

  // As many lines of text in each card as let all boxes be seen at once; at least one.
  linesThatFit(forest, unit) {
    if (this.film.silent) return 0;
    const height = this.scroller.clientHeight;
    const cards = new Map(), boxes = new Map(); // by column
    const count = (box) => {
      cards.set(box.node.index, (cards.get(box.node.index) || 0) + box.cards.length);
      boxes.set(box.node.index, (boxes.get(box.node.index) || 0) + 1);
      box.kids.forEach(count);
    };
    forest.slice(0, 1).forEach(count);
    const fits = (lines) => [...cards].every(([column, many]) => boxes.get(column) * (1.95 * unit + 14) + many * (1.72 + 1.08 * lines) * unit + 4 < height);
    for (const lines of [4, 3, 2]) if (fits(lines)) return lines;
    return 1;
  }

  // Puts a box below what stands in its column already, but not above the box before it; then everything behind it.
  place(box, highest, left, size, about) {
    const column = box.node.index, x = left(column), top = Math.max(highest, about.bottoms.get(column) || 2);
    const fade = box.gone ? clamp(0.7 * (1 - (about.time - box.age) / (about.fade || 1)), 0.06, 0.7) : 1;
    this.draw(box, x, top, size, about, fade);
    about.bottoms.set(column, top + size.name + box.cards.length * size.card + 14);
    for (const kid of box.kids) {
      const at = box.cards.findIndex((card) => card.name === kid.node.name && card.child);
      const to = this.place(kid, top, left, size, about);
      about.links.push([x + size.column, top + size.name + (at + 0.5) * size.card - 4, left(kid.node.index), to + size.name * 0.55, kid.gone ? fade * 0.5 : 1]);
    }
    return top;
  }

  element(name, classes) {
    let element = this.boxes.get(name);
    if (!element) {
      element = make("div", classes);
      this.boxes.set(name, element);
      this.field.append(element);
    }
    return element;
  }

  draw(box, x, top, size, about, opacity) {
    const { node, cards } = box, n = about.n, root = !box.gone && this.film.rootAt(n) === node.name;
    const element = this.element(node.name, "node");
    about.shown.add(node.name);
    element.className = `node${root ? " root" : ""}${box.gone ? " ghost" : ""}`;
    Object.assign(element.style, { left: `${x}px`, top: `${top}px`, width: `${size.column}px`, opacity });
    const signature = cards.map((card) => [card.name, card.by, card.state, card.step ? card.step.at(n).length : 0, card.step && card.step.done(n)]).join("|") + root;
    if (element.signature === signature) return;
    element.signature = signature;
    const name = make("div", "name", null, {}, [make("b", "", root ? `root · step ${node.index}` : `step ${node.index}`), make("span", "", `node ${node.name}`)]);
    name.dataset.tip = root ? `The root: everything before step ${node.index} is decided. (node ${node.name})` : `Node ${node.name}: the accepted steps plus the draft steps up to here. Step ${node.index} is written behind it.`;
    element.replaceChildren(name, ...cards.map((card) => this.card(card, node, n)));
  }

  card(card, node, n) {
    const tokens = card.step ? card.step.at(n) : [], done = card.step && card.step.done(n);
    const quiet = !tokens.some((token) => (token.whole || token.piece).trim());
    const busy = card.state === "writing" || card.state === "judging";
    const element = make("div", `card ${card.by} ${card.state}${busy ? " busy" : ""}${quiet ? " quiet" : ""}`);
    const who = card.state === "judging" ? "state busy verifier" : busy ? "state busy" : "state";
    element.append(make("div", "head", null, {}, [make("span", "", card.by), make("span", who, card.label)]));
    const words = make("div", "words");
    if (quiet) words.textContent = this.film.silent ? "" : card.state === "failed" ? card.child.why : "…";
    else words.append(...tokenElements(tokens, card.by, done));
    element.append(words);
    element.dataset.tip = this.explain(card, node, n);
    return element;
  }

  explain(card, node, n) {
    const lines = [`${card.by === "draft" ? "Draft" : "Target"} step ${node.index} ${STATES[card.state]}.`];
    if (card.step && card.step.text(n).trim()) lines.push(quoted(card.step.text(n).trim()));
    if (card.child && card.child.judged < n) lines.push(`Verdict: ${card.child.verdict.why}`);
    lines.push(card.child ? `It leads from node ${node.name} to node ${card.name}.` : `It stands behind node ${node.name}.`);
    return lines.join("\n");
  }

  // The last decided step, to the left of the root.
  pastBox(past, n, x, size, about, rootBox) {
    const element = this.element("past", "node past");
    about.shown.add("past");
    about.bottoms.set(past.index, 2 + size.name + size.card + 24);
    Object.assign(element.style, { left: `${x}px`, top: "2px", width: `${size.column}px`, opacity: 1 });
    const signature = String(past.at);
    if (element.signature !== signature) {
      element.signature = signature;
      const by = past.origin === "accepted" ? "draft" : "target", origin = ORIGINS[past.origin];
      const card = make("div", `card ${by}${past.origin === "accepted" ? " aligned" : ""}`, null, {}, [
        make("div", "head", null, {}, [make("span", "", by), make("span", "state", `${origin.mark} ${origin.name}`)]),
        make("div", "words", null, {}, tokenElements(past.step.at(NEVER), by, true)),
      ]);
      card.dataset.tip = `Decided. Step ${past.index}, ${origin.name}: ${origin.means}.`;
      element.replaceChildren(make("div", "name", null, {}, [make("b", "", `decided · step ${past.index}`)]), card);
    }
    if (rootBox) about.links.push([x + size.column - 4, 2 + size.name + size.card / 2, x + size.column + size.gap, 2 + size.name * 0.55, 1]);
  }

  finish(forest, left, size, { links, bottoms }, lines) {
    const last = (box) => Math.max(box.node.index, ...box.kids.map(last));
    const columns = forest.length ? Math.max(...forest.map(last)) : 0;
    this.field.style.width = `${left(columns) + size.column + 6}px`;
    this.field.style.height = `${Math.max(0, ...bottoms.values())}px`;
    this.field.style.setProperty("--lines", lines);
    const drawn = links.map(([x, y, toX, toY, opacity]) => `${x},${y},${toX},${toY},${opacity}`).join(";");
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.lines.replaceChildren(...links.map(([x, y, toX, toY, opacity]) => {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path"), middle = (x + toX) / 2;
      path.setAttribute("d", `M${x} ${y} C${middle} ${y} ${middle} ${toY} ${toX} ${toY}`);
      path.style.opacity = opacity * 0.6;
      return path;
    }));
  }
}
