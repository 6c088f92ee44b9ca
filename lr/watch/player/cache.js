// The cache: the pool's blocks by number, and below it a row per branch with its block table.
// Filled blocks are shared and carry their refcount; a double frame marks a copy just made.

const CACHES = {
  target: "The target's cache", draft: "The draft's cache",
  drafter: "The cache of the draft model that proposes tokens for the target",
};
const FLASH = 6; // events for which a copy is marked

class CacheView {
  constructor(states, field, tabs) {
    Object.assign(this, { states, field, tabs, n: 0 });
    this.names = Object.keys(states.caches);
    this.chosen = this.names.includes("target") ? "target" : this.names[0];
    for (const name of this.names) {
      const button = make("button", { text: name, tip: CACHES[name], type: "button" });
      button.addEventListener("click", () => this.choose(name));
      tabs.append(button);
    }
    if (this.names.length) this.choose(this.chosen);
  }

  choose(name) {
    this.chosen = name;
    [...this.tabs.children].forEach((button, i) =>
      button.setAttribute("aria-pressed", String(this.names[i] === name)));
    this.show(this.n);
  }

  next() {
    const { length } = this.names, at = this.names.indexOf(this.chosen);
    if (length) this.choose(this.names[(at + 1) % length]);
  }

  show(n) {
    this.n = n;
    if (!this.names.length) return;
    const life = this.states.caches[this.chosen], owners = new Map(), copies = new Map();
    const branches = this.states.branchesAt(this.chosen, n);
    for (const { number, blocks } of branches) {
      for (const block of blocks) owners.set(block, [...(owners.get(block) || []), number]);
    }
    for (const [when, made] of life.copies) {
      if (when > n || when <= n - FLASH) continue;
      for (const [by, old, block] of made) copies.set(block, [by, old]);
    }
    const shown = JSON.stringify([this.chosen, branches, [...copies], innerWidth]);
    if (shown === this.shown) return;
    this.shown = shown;
    const shared = [...owners.values()].filter((list) => list.length > 1).length;
    const says = `${owners.size} of ${life.total || "?"} blocks used, ${shared} shared, `
      + `${plural(branches.length, "branch", "es")}; ${life.size} tokens in a block`;
    this.field.setAttribute("aria-label", `The ${this.chosen}'s cache: ${says}`);
    const pool = Math.min(life.total || 0, Math.max(-1, ...owners.keys()) + 9, 120);
    const strip = Array.from({ length: pool }, (_, block) => this.block(block, owners, copies));
    this.field.replaceChildren(make("p.says", { text: says }), make("div.pool", {}, strip),
      ...branches.map((branch) => this.row(branch, life.size, owners, copies)));
  }

  block(block, owners, copies, filled) {
    const by = owners.get(block) || [], copy = copies.get(block), count = by.length;
    let tip = !count ? `Block ${block} is free.` : count > 1
      ? `Block ${block}: shared by ${count} branches (${by.join(", ")}); refcount ${count}.`
      : `Block ${block}: held by branch ${by[0]} alone.`;
    if (copy) tip += `\nJust made: branch ${copy[0]} wrote into block ${copy[1]}, which others `
      + "hold too, so it was copied first (copy on write).";
    const kind = !count ? "free" : count > 1 ? "shared" : "own";
    const element = make(`span.block.${kind}${copy ? ".copied" : ""}`, { tip, text: block });
    if (count > 1) element.append(make("small", { text: `×${count}` }));
    if (filled !== undefined) element.style.setProperty("--filled", filled);
    return element;
  }

  row({ number, source, length, node, blocks }, size, owners, copies) {
    const whose = node ? `node ${node}` : this.states.plain ? "the answer" : "passing";
    const tip = `Branch ${number}: ${node ? `the prefix of node ${node}` : "a passing one"}, `
      + `${plural(length, "token")} in ${plural(blocks.length, "block")}.`
      + (source === null ? "" : `\nForked from branch ${source}.`);
    const hidden = Math.max(0, blocks.length - 14);
    const full = (place) => clamp((length - place * size) / size, 0, 1);
    const cells = blocks.map((block, place) => [block, place])
      .filter(([, place]) => place === 0 || place > hidden)
      .map(([block, place]) => this.block(block, owners, copies, full(place)));
    if (hidden) cells.splice(1, 0, make("span.hidden", { text: `…${hidden}` }));
    const name = make("span.whose", { tip }, [make("b", { text: whose }),
      make("small", { text: `branch ${number}, ${length} tokens` })]);
    return make("div.branch", {}, [name, make("div.pool", {}, cells)]);
  }
}
