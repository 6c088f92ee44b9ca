// Buttons, keys, slider and the theme: each does one thing to the player.

function connect(player) {
  const press = (id, action) => byId(id).addEventListener("click", action);
  press("play", () => player.toggle());
  press("event-back", () => settled(player, () => player.step(false)));
  press("event-next", () => settled(player, () => player.step(true)));
  press("decision-back", () => settled(player, () => player.jump(player.stops.decisions, false)));
  press("decision-next", () => settled(player, () => player.jump(player.stops.decisions, true)));
  press("rejection-next", () => settled(player, () => player.jump(player.stops.rejections, true)));
  press("theme", () => setTheme(player, document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  press("text-size", () => setScale(player, scaleNow() > 1.35 ? 1 : scaleNow() + 0.2));
  press("help-open", () => byId("help").showModal());
  press("zoom-in", () => player.timeline.zoom(0.5, player.time));
  press("zoom-out", () => player.timeline.zoom(2, player.time));
  press("zoom-all", () => player.timeline.zoom(Infinity, player.time));
  press("show-refused", () => {
    const hidden = document.body.classList.toggle("hide-refused");
    byId("show-refused").setAttribute("aria-pressed", String(!hidden));
  });
  byId("scrub").addEventListener("input", () => {
    player.pause();
    player.go(+byId("scrub").value);
  });
  byId("scrub").addEventListener("change", () => player.toAddress());
  addEventListener("hashchange", () => player.fromAddress());
  document.addEventListener("keydown", (event) => onKey(player, event));
  scrubOn(player, byId("timeline"));
  fillHelp();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(player, dark.matches ? "dark" : "light", false);
  dark.addEventListener("change", () => setTheme(player, dark.matches ? "dark" : "light"));
}

function settled(player, action) {
  action();
  player.toAddress();
}

// Dragging on the clock moves through time.
function scrubOn(player, canvas) {
  const move = (event) => {
    const time = player.timeline.timeAt(event.clientX - canvas.getBoundingClientRect().left);
    player.pause();
    player.go(player.film.numberAt(time), time);
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    move(event);
  });
  canvas.addEventListener("pointermove", (event) => canvas.hasPointerCapture(event.pointerId) && move(event));
  canvas.addEventListener("pointerup", () => player.toAddress());
}

const scaleNow = () => parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--scale")) || 1;

function setScale(player, scale) {
  document.documentElement.style.setProperty("--scale", clamp(scale, 0.7, 2).toFixed(2));
  player.marked = null;
  for (const box of player.tree.boxes.values()) box.signature = null;
  player.redraw();
}

function setTheme(player, theme, redraw = true) {
  document.documentElement.dataset.theme = theme;
  player.palette.read();
  if (redraw) player.redraw();
}

function onKey(player, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const inField = event.target.matches("select, button") && [" ", "Enter", "ArrowUp", "ArrowDown"].includes(event.key);
  const actions = {
    " ": () => player.toggle(),
    ArrowRight: () => settled(player, () => (event.shiftKey ? player.jump(player.stops.decisions, true) : player.step(true))),
    ArrowLeft: () => settled(player, () => (event.shiftKey ? player.jump(player.stops.decisions, false) : player.step(false))),
    r: () => settled(player, () => player.jump(player.stops.rejections, !event.shiftKey)),
    Home: () => settled(player, () => { player.pause(); player.go(0); }),
    End: () => settled(player, () => { player.pause(); player.go(player.count); }),
    ArrowUp: () => faster(1),
    ArrowDown: () => faster(-1),
    z: () => player.timeline.zoom(0.5, player.time),
    x: () => player.timeline.zoom(2, player.time),
    c: () => player.cache.next(),
    d: () => setTheme(player, document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
    "+": () => setScale(player, scaleNow() + 0.1),
    "=": () => setScale(player, scaleNow() + 0.1),
    "-": () => setScale(player, scaleNow() - 0.1),
    "?": () => byId("help").showModal(),
  };
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (inField || !Object.hasOwn(actions, key)) return;
  event.preventDefault();
  actions[key]();
}

function faster(by) {
  const speed = byId("speed");
  speed.selectedIndex = clamp(speed.selectedIndex + by, 0, speed.options.length - 1);
}

function fillHelp() {
  const row = ([key, means]) => make("tr", "", null, {}, [make("td", "", null, {}, [make("kbd", "", key)]), make("td", "", means)]);
  const origins = Object.values(ORIGINS).map(({ mark, name, means }) => [`${mark} ${name}`, means]);
  byId("help").replaceChildren(
    make("form", "", null, { method: "dialog" }, [make("button", "", "Close", { type: "submit" })]),
    make("h2", "", "Help", { id: "help-title" }),
    make("p", "", "A small model, the draft, writes reasoning steps ahead; the large one, the target, writes its own step at every place at the same time; a verifier says whether a draft step means the same. If so it is kept, else the target's step takes its place."),
    make("h3", "", "Keys"), make("table", "", null, {}, KEYS.map(row)),
    make("h3", "", "How a step came into the answer"), make("table", "", null, {}, origins.map(row)),
    make("h3", "", "Links"), make("p", "", "The address ends in #event=number when the player rests: share it, and it opens at that moment."),
  );
}

addEventListener("DOMContentLoaded", () => {
  window.player = new Player(JSON.parse(byId("data").textContent));
  window.player.start();
});
