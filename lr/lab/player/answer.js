// The answer: the decided steps in order, and, in dashed boxes, the drafts ahead of them. Only the last steps are in the page (WINDOW);
// a button fetches the earlier ones.

const WINDOW = 30;

class Answer {
  constructor(film, list, ahead, scroller) {
    Object.assign(this, { film, list, ahead, scroller, from: 0, to: 0, all: false, signature: "" });
  }

  show(n) {
    const emitted = this.film.emittedAt(n), count = emitted.length;
    const from = this.all ? 0 : Math.max(0, count - WINDOW);
    if (count !== this.to || from !== this.from) this.fill(emitted, from, count);
    this.lookAhead(n);
  }

  fill(emitted, from, count) {
    const kept = count > this.to && from === this.from && this.list.children.length > 0;
    if (kept) {
      this.list.append(...emitted.slice(this.to, count).map((one) => this.step(one)));
    } else {
      const items = emitted.slice(from, count).map((one) => this.step(one));
      this.list.replaceChildren(...(from ? [this.earlier(from)] : []), ...items);
    }
    [...this.list.children].forEach((item, place, items) => item.classList.toggle("newest", place === items.length - 1));
    [this.from, this.to] = [from, count];
    this.moved = true;
  }

  earlier(count) {
    const button = make("button", "earlier", `show ${plural(count, "earlier step")}`, { type: "button" });
    button.addEventListener("click", () => {
      this.all = true;
      this.show(this.now);
    });
    return make("li", "", null, {}, [button]);
  }

  step(one) {
    const origin = ORIGINS[one.origin], by = one.origin === "accepted" ? "draft" : "target";
    const label = make("div", "origin", null, {}, [make("i", "", origin.mark, { "aria-hidden": "true" }), document.createTextNode(origin.name), make("span", "number", ` · ${one.index}`)]);
    label.dataset.tip = `Step ${one.index}, ${origin.name}: ${origin.means}.${one.verdict ? `\nVerdict: ${one.verdict.why}` : ""}`;
    const tokens = one.step.at(NEVER), silent = !one.step.text(NEVER).trim();
    const body = make("div", "body", null, {}, silent ? [document.createTextNode(`the ${by}'s step`)] : tokenElements(tokens, by, true));
    const parts = [body];
    if (one.rejected) {
      const text = textOf(one.rejected);
      const reason = one.verdict ? ` ${one.verdict.why}` : "";
      parts.unshift(make("div", "", null, {}, [make("span", "replaced", text || "the draft's step"), make("span", "reason", reason)]));
      parts[0].dataset.tip = "The draft step that was rejected, and why.";
    }
    return make("li", `step ${by}`, null, {}, [label, make("div", "", null, {}, parts)]);
  }

  // The drafts on the first path below the root: what the text will be if all of them are accepted.
  lookAhead(n) {
    this.now = n;
    const steps = [];
    let node = this.film.nodes.get(this.film.rootAt(n));
    while (node) {
      const child = this.film.childrenOf(node, n).find((one) => one.until >= n && one.draft && !(one.judged < n && !one.verdict.aligned));
      const step = child ? child.draft : !steps.length && node.target && node.until >= n ? node.target : null;
      if (step && step.text(n).trim()) steps.push([node.index, step, child ? "draft" : "target", step.at(n).length]);
      node = child;
    }
    const signature = steps.map(([index, step, by, length]) => `${index}${by}${length}${step.done(n)}`).join() + this.film.rootAt(n);
    if (signature !== this.signature) {
      this.signature = signature;
      this.ahead.replaceChildren(...steps.map(([index, step, by]) => {
        const label = make("div", "origin", null, {}, [make("i", "", "⋯", { "aria-hidden": "true" }), document.createTextNode("ahead"), make("span", "number", ` · ${index}`)]);
        label.dataset.tip = by === "draft" ? "A draft step ahead of the last decision: it may still be rejected." : "The target is writing this step.";
        return make("li", `step ahead ${by}`, null, {}, [label, make("div", "body", null, {}, tokenElements(step.at(n), by, step.done(n)))]);
      }));
      this.moved = true;
    }
    if (this.moved) {
      this.moved = false;
      this.follow();
    }
  }

  // Keeps the newest decided step in sight.
  follow() {
    const last = this.list.lastElementChild;
    if (!last) { this.scroller.scrollTop = 0; return; }
    const bottom = last.offsetTop + last.offsetHeight + Math.min(this.ahead.offsetHeight, this.scroller.clientHeight * 0.4);
    this.scroller.scrollTop = Math.max(0, bottom - this.scroller.clientHeight);
  }
}
