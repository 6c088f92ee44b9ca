// A Worker for pages that are opened from disk, where browsers start none: its program runs in a
// hidden frame. The search of the site needs it; nothing is fetched from elsewhere.
if (location.protocol === "file:") {
  const load = (page, src) => new Promise((done, failed) => {
    const script = page.createElement("script");
    Object.assign(script, { src, onload: done, onerror: failed });
    page.body.append(script);
  });
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.frame = Object.assign(document.createElement("iframe"), { hidden: true });
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inner.importScripts = (...urls) => urls.reduce((before, one) =>
        before.then(() => load(inner.document, one)), Promise.resolve());
      this.ready = load(inner.document, url);
    }

    postMessage(data) {
      const { contentWindow } = this.frame;
      this.ready.then(() => contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
