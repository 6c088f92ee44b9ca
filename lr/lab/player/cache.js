// The cache: the pool as a strip of blocks by number, and below it a row per branch with its blocks in order. Filled blocks are shared (the
// number is the refcount); a double frame marks a copy that was just made. Long tables show their first and last blocks.

class CacheView {
  constructor(film, canvas, tabs, palette) {
    Object.assign(this, { film, canvas, tabs, palette, boxes: [], n: 0 });
    this.names = [...film.caches.keys()].filter((name) => film.caches.get(name).branches.size);
    this.chosen = this.names.includes("target") ? "target" : this.names[0];
    const titles = { target: "target", draft: "draft", guesser: "guesser" };
    for (const name of this.names) {
      const button = make("button", "", titles[name] || name, { type: "button", "aria-pressed": String(name === this.chosen) });
      button.dataset.tip = { target: "The target's cache", draft: "The draft's cache", guesser: "The cache of the draft model that guesses tokens for the target" }[name] || `The cache ${name}`;
      button.addEventListener("click", () => this.choose(name));
      tabs.append(button);
    }
  }

  get any() {
    return this.names.length > 0;
  }

  choose(name) {
    this.chosen = name;
    [...this.tabs.children].forEach((button, i) => button.setAttribute("aria-pressed", String(this.names[i] === name)));
    this.show(this.n);
  }

  next() {
    if (this.any) this.choose(this.names[(this.names.indexOf(this.chosen) + 1) % this.names.length]);
  }

  show(n) {
    this.n = n;
    if (!this.any) return;
    const life = this.film.caches.get(this.chosen), branches = life.at(n), holders = new Map();
    for (const branch of branches) {
      for (const block of branch.blocks) holders.set(block, (holders.get(block) || []).concat(branch.number));
    }
    const copies = this.copiesAt(life, n);
    const shared = [...holders.values()].filter((list) => list.length > 1).length;
    this.says = `${holders.size} of ${life.total || "?"} blocks used, ${shared} shared, ${plural(branches.length, "branch").replace("branchs", "branches")}`;
    this.canvas.setAttribute("aria-label", `The ${cacheName(this.chosen)}: ${this.says}`);
    const unit = rem(), cell = clamp(1.75 * unit, 20, 40);
    const width = this.canvas.parentElement.clientWidth, perLine = Math.max(4, Math.floor((width - 4) / (cell * 0.72)));
    const highest = this.highest(life), strip = Math.min(highest + 1, perLine * 3), lines = Math.ceil(strip / perLine);
    const top = 1.3 * unit + lines * cell * 0.72 + 0.7 * unit;
    const height = top + Math.max(1, branches.length) * (cell + 5) + 6;
    this.boxes = [];
    paintOn(this.canvas, height, (c, wide) => {
      c.textBaseline = "middle";
      this.font(c, 0.76 * unit);
      c.fillStyle = this.palette.soft;
      c.textAlign = "left";
      c.fillText(wide > 27 * unit ? `${this.says}; ${life.size} tokens in a block` : this.says, 1, 0.6 * unit);
      this.strip(c, { strip, perLine, cell: cell * 0.72, top: 1.3 * unit, holders, copies });
      branches.forEach((branch, i) => this.branch(c, branch, { y: top + i * (cell + 5), cell, unit, wide, holders, copies, life }));
    });
  }

  font(c, size, weight) {
    c.font = `${weight || ""} ${size}px ${this.palette.font}`;
  }

  // The highest block that the run ever used, found once per cache.
  highest(life) {
    if (life.highest === undefined) {
      life.highest = 0;
      for (const branch of life.branches.values()) for (const hold of branch.blocks) if (hold.block > life.highest) life.highest = hold.block;
    }
    return life.highest;
  }

  // The copies of the last append of which the picture still shows the flash: those of the last 6 events.
  copiesAt(life, n) {
    const found = new Map();
    for (let i = life.copies.length - 1; i >= 0 && life.copies[i][0] >= n - 6; i -= 1) {
      if (life.copies[i][0] < n) for (const [branch, old, made] of life.copies[i][1]) found.set(made, { branch, old });
    }
    return found;
  }

  strip(c, { strip, perLine, cell, top, holders, copies }) {
    const p = this.palette;
    for (let block = 0; block < strip; block += 1) {
      const x = (block % perLine) * cell + 1, y = top + Math.floor(block / perLine) * cell, count = (holders.get(block) || []).length;
      c.fillStyle = count > 1 ? p.cache : count ? p.faint : p.panel;
      c.strokeStyle = count ? p.cache : p.line;
      c.lineWidth = 1;
      c.fillRect(x, y, cell - 3, cell - 3);
      c.strokeRect(x + 0.5, y + 0.5, cell - 4, cell - 4);
      if (copies.has(block)) this.frame(c, x, y, cell - 3);
      if (count > 1 && cell > 13) {
        this.font(c, cell * 0.5, "600");
        c.fillStyle = p.panel;
        c.textAlign = "center";
        c.fillText(String(count), x + (cell - 3) / 2, y + (cell - 3) / 2 + 0.5);
      }
      this.boxes.push([x, y, cell - 3, () => this.blockText(block, holders, copies)]);
    }
  }

  frame(c, x, y, size) {
    c.strokeStyle = this.palette.verifier;
    c.lineWidth = 2;
    c.strokeRect(x - 1, y - 1, size + 2, size + 2);
    c.strokeRect(x + 3, y + 3, size - 6, size - 6);
  }

  branch(c, branch, { y, cell, unit, wide, holders, copies, life }) {
    const p = this.palette, label = 7.4 * unit;
    this.font(c, 0.8 * unit, "600");
    c.textAlign = "left";
    c.fillStyle = branch.node ? p.ink : p.soft;
    c.fillText(branch.node ? `node ${branch.node}` : this.film.plain ? "the answer" : "passing", 1, y + cell * 0.3);
    this.font(c, 0.72 * unit);
    c.fillStyle = p.soft;
    c.fillText(`branch ${branch.number}, ${branch.length} tok.`, 1, y + cell * 0.75);
    this.boxes.push([0, y, cell, () => this.branchText(branch), label]);
    const fit = Math.max(3, Math.floor((wide - label) / (cell + 2)));
    const hidden = Math.max(0, branch.blocks.length - fit), places = branch.blocks.map((block, place) => place);
    const shown = hidden ? [places[0], -1, ...places.slice(hidden + 2)] : places;
    shown.forEach((place, i) => {
      const x = label + i * (cell + 2);
      if (place < 0) {
        c.fillStyle = p.soft;
        c.textAlign = "center";
        c.fillText(`⋯${hidden + 1}`, x + cell / 2, y + cell / 2);
        return;
      }
      const block = branch.blocks[place], count = holders.get(block).length;
      this.block(c, { x, y, cell, block, count, filled: clamp((branch.length - place * life.size) / life.size, 0, 1), copied: copies.has(block) });
      this.boxes.push([x, y, cell, () => this.blockText(block, holders, copies)]);
    });
  }

  // One block in a branch's row: its number; a bar at its foot says how full the branch sees it.
  block(c, { x, y, cell, block, count, filled, copied }) {
    const p = this.palette;
    c.fillStyle = count > 1 ? p.cache : p.faint;
    c.strokeStyle = p.cache;
    c.lineWidth = 1;
    c.fillRect(x, y, cell, cell);
    c.strokeRect(x + 0.5, y + 0.5, cell - 1, cell - 1);
    this.font(c, cell * 0.38, "600");
    c.textAlign = "center";
    c.fillStyle = count > 1 ? p.panel : p.ink;
    c.fillText(String(block), x + cell / 2, y + cell * 0.38);
    this.font(c, cell * 0.28);
    if (count > 1) c.fillText(`×${count}`, x + cell / 2, y + cell * 0.69);
    c.fillRect(x + 2, y + cell - 5, (cell - 4) * filled, 3);
    if (copied) this.frame(c, x, y, cell);
  }

  blockText(block, holders, copies) {
    const by = holders.get(block) || [], copy = copies.get(block);
    const made = copy ? `\nJust made: branch ${copy.branch} wrote into block ${copy.old}, which others hold too, so it was copied first (copy on write).` : "";
    if (!by.length) return `Block ${block} is free: nobody holds it.`;
    return `Block ${block}: held by ${by.length > 1 ? `${by.length} branches (${by.join(", ")}): shared` : `branch ${by[0]} alone`}; refcount ${by.length}.${made}`;
  }

  branchText(branch) {
    const origin = branch.source === null ? "" : `\nForked from branch ${branch.source}.`;
    const whose = branch.node ? `it holds the prefix of node ${branch.node}` : "a passing one, such as a path of guessed tokens";
    return `Branch ${branch.number}: ${whose}. ${plural(branch.length, "token")} in ${plural(branch.blocks.length, "block")}.${origin}`;
  }

  explain(px, py) {
    const hit = this.boxes.find(([x, y, size, , wide]) => px >= x && px < x + (wide || size) && py >= y && py < y + size);
    return hit ? hit[3]() : "";
  }
}
