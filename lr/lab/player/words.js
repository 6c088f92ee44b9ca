// What each event means, in the words of GLOSSARY.md: {who, mark, text, more}. `who` is a lane (its colour), `mark` a sign that stands for
// the event without colour. Pure functions of data; texts are put into the page as text, never as markup.

const ORIGINS = {
  accepted: { mark: "✓", name: "accepted", means: "a draft step that the verifier found aligned with the target's own: kept, in the draft's words" },
  correction: { mark: "✗", name: "correction", means: "the target's step in place of a draft step that was rejected" },
  bonus: { mark: "+", name: "bonus", means: "the target's step behind the last draft step of a cycle in which all were accepted; never judged" },
  target: { mark: "•", name: "target", means: "a step that the target wrote, with no draft step to decide on" },
};

const SOURCES = {
  drawn: ["drawn", "written by the model itself, one token in one pass"],
  guessed: ["guessed and kept", "guessed ahead by the drafter and accepted by the target: several such tokens cost one pass of the target"],
  residual: ["in place of a rejected guess", "a guess stood here and was rejected; the target wrote this token instead"],
  after: ["behind the guesses", "all guesses were kept, and the target's pass gave one token more"],
};

const LANES = { draft: "draft", target: "target", judge: "verifier", verifier: "verifier" };
const WORKS = { draft: "the draft's step", target: "the target's step", judge: "the judging of the draft step" };

const indexOf = (name) => +name.split(":")[1].split(".")[0];
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const percent = (p) => (p >= 0.9995 ? "1.00" : p < 0.005 ? p.toExponential(0) : p.toFixed(2));
const quoted = (text) => `“${text.replace(/\n/g, "⏎")}”`;
const textOf = (step) => step.pieces.join("").trim();
const FINISHES = { boundary: "", eos: " It ends the answer.", length: " It was cut at the length limit." };

function saidBy(step) {
  const text = textOf(step);
  return text ? quoted(text) : `${plural(step.tokens.length, "token")}, without text`;
}

const cacheName = (name) => ({ target: "target's cache", draft: "draft's cache", guesser: "guesser's cache" })[name] || `cache ${name}`;
const ownerOf = (data, film) => {
  const life = film.caches.get(data.cache), branch = life && life.branch(data.branch);
  const node = branch ? lastBefore(branch.nodes, NEVER, null) : null;
  return `branch ${data.branch}${node ? ` (of node ${node})` : ""}`;
};

const EVENT_WORDS = {
  draft: (d) => ["draft", "▸", `The draft starts ${d.children.length > 1 ? `${d.children.length} alternatives for` : ""} step ${indexOf(d.node)}`.replace("starts  step", "starts step"),
    `Behind node ${d.node}: ${d.children.map((one) => `node ${one}`).join(", ")} will stand behind ${d.children.length > 1 ? "them" : "it"}.`],
  target: (d) => ["target", "▸", `The target starts its own step ${indexOf(d.node)} behind node ${d.node}`,
    "It writes from the same prefix as the draft did, in one ragged batch with all its other rows."],
  judge: (d) => ["verifier", "▸", d.target ? `The verifier is asked: does draft step ${indexOf(d.parent)} mean the same as the target's?` : `The verifier is to judge draft step ${indexOf(d.parent)} by itself`,
    `The draft step leads to node ${d.node}; both stand behind node ${d.parent}.`],
  drafted: (d) => !d.step ? ["draft", "∅", `No draft step will lead to node ${d.node}`, "No draft can come."] : ["draft", "■", `Draft step ${indexOf(d.node) - 1} is there: ${saidBy(d.step)}`, `It leads to node ${d.node}.${FINISHES[d.step.finish] || ""}`],
  targeted: (d) => ["target", "■", `The target's step ${indexOf(d.node)} is there: ${saidBy(d.step)}`, `It stands behind node ${d.node}.${FINISHES[d.step.finish] || ""}`],
  judged: (d) => !d.verdict ? ["verifier", "?", "The verifier wants to see the target's step first", `Draft step ${indexOf(d.node) - 1}, node ${d.node}.`] : ["verifier", d.verdict.aligned ? "✓" : "✗", `Verdict on draft step ${indexOf(d.node) - 1}: ${d.verdict.aligned ? "aligned" : "not aligned"}`,
    `${d.verdict.why}${d.verdict.score === null ? "" : ` (score ${percent(d.verdict.score)})`}; node ${d.node}.`],
  emit: (d) => [d.origin === "accepted" ? "accepted" : "target", ORIGINS[d.origin].mark, `Step ${d.index} joins the answer (${ORIGINS[d.origin].name}): ${saidBy(d.step)}`,
    d.rejected ? `Instead of the draft's ${saidBy(d.rejected)}.` : `${ORIGINS[d.origin].means[0].toUpperCase()}${ORIGINS[d.origin].means.slice(1)}.`],
  cancel: (d) => ["rejected", "✕", `Cancelled: ${WORKS[d.work]} at node ${d.node}`, "It stood below a rejected step or beside an accepted one; what still arrives of it is ignored."],
  release: (d) => ["rejected", "○", `Node ${d.node} leaves the tree`, "Its branches are closed; blocks that nobody else holds are free again."],
  token: (d) => [d.role, "·", `The ${d.role} writes ${d.piece.trim() ? quoted(d.piece.trim()) : "white space"} with probability ${percent(d.p)}`,
    `Token ${d.token}, number ${d.offset} of step ${d.index}${d.node ? `, node ${d.node}` : ""}.`],
  round: (d) => [d.role, "≣", `The ${d.role} checks ${plural(d.proposed, "guessed token")} in one pass and keeps ${d.accepted}`,
    `Step ${d.index}${d.node ? `, node ${d.node}` : ""}: ${plural(d.emitted, "token")} join it${d.detail ? `, the last ${quoted(d.detail.piece)}` : ""}.`],
  written: (d) => [d.role, "■", `The ${d.role} has finished a step: ${saidBy(d.step)}`, `Step ${d.index}.${FINISHES[d.step.finish] || ""}`],
  forward: (d) => [d.role, "▮", `One pass of the ${d.role}: ${plural(d.branches, "row")}, ${plural(d.tokens, "position")}`, `It took ${(d.seconds * 1000).toFixed(1)} ms.`],
  verifier: (d) => ["verifier", "▮", `The verifier has answered about ${plural(d.pairs, "pair")}`, `It took ${(d.seconds * 1000).toFixed(1)} ms.`],
  span: (d) => [d.work, "▮", `A worker ${d.completed ? "has finished" : "has dropped"} ${WORKS[d.work]} at node ${d.node}`, `It began at ${d.start.toFixed(2)}.`],
  draw: (d) => ["rejected", "⚄", `A number is drawn: ${d.purpose}${d.node ? ` at node ${d.node}` : ""}`, `${+d.value.toPrecision(4)}, by key ${d.key}.`],
  open: (d) => ["cache", "▢", `An empty branch in the ${cacheName(d.cache)}`, `Branch ${d.branch}.`],
  fork: (d) => ["cache", "⑂", `Fork in the ${cacheName(d.cache)}: branch ${d.branch} shares all blocks of branch ${d.source}`, "Nothing is copied; every shared block has one holder more."],
  grow: (d) => ["cache", d.copies.length ? "⧉" : "▪", d.copies.length
    ? `Copy on write in the ${cacheName(d.cache)}: ${d.copies.map(([branch, old, made]) => `branch ${branch} leaves block ${old} for its copy ${made}`).join(", ")}`
    : d.rows.length === 1 ? `A branch of the ${cacheName(d.cache)} grows` : `${d.rows.length} branches of the ${cacheName(d.cache)} grow`,
    `${d.rows.length > 3 ? `${d.rows.length} branches` : d.rows.map(([branch, length]) => `branch ${branch} to ${length} tokens`).join(", ")}${d.fresh.length ? `; ${plural(d.fresh.length, "new block")}` : ""}.`],
  cut: (d, film) => ["cache", "✂", `The ${cacheName(d.cache)}: ${ownerOf(d, film)} is cut back to ${plural(d.length, "token")}`, `Rejected guesses leave the cache; ${plural(d.freed.length, "block")} freed.`],
  close: (d) => ["cache", "▫", `The ${cacheName(d.cache)}: branch ${d.branch} is closed`, `It gives up ${plural(d.dropped.length, "block")}; ${d.freed.length} of them nobody else held.`],
  restore: (d) => ["cache", "↺", `The ${cacheName(d.cache)}: branch ${d.branch} is as it was before a failed pass`, `${plural(d.length, "token")}.`],
  hold: (d) => ["cache", "⚑", `Branch ${d.branch} of the ${cacheName(d.cache)} belongs to node ${d.node}`, "It holds the node's prefix."],
  replace: (d) => ["cache", "⇄", `In the ${cacheName(d.cache)} branch ${d.heir} takes the place of branch ${d.branch}`, "Its node goes with it."],
  end: (d) => ["accepted", "◼", d.done ? "The end: the answer is complete" : "The end", d.why || "The chain came to its end."],
};

function describe(record, film) {
  const words = Object.hasOwn(EVENT_WORDS, record.event) ? EVENT_WORDS[record.event](record, film) : null;
  if (!words) return { who: "rejected", mark: "·", text: `An event of a kind this page does not know: ${record.event}`, more: "" };
  const [who, mark, text, more] = words;
  return { who, mark, text, more };
}

// A moment or a length of time in the clock's unit, short.
function clockText(time, header) {
  if (header.unit !== "second") return `${+time.toFixed(header.unit === "turn" ? 0 : 2)} ${header.unit}${Math.abs(time - 1) < 1e-9 ? "" : "s"}`;
  if (Math.abs(time) < 1) return `${(time * 1000).toFixed(Math.abs(time) < 0.1 ? 1 : 0)} ms`;
  return `${time.toFixed(2)} s`;
}
