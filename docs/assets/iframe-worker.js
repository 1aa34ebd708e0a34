// A browser refuses workers to pages opened from a folder (file://), and the search runs in one.
// There, a hidden frame does the worker's work, so that the search works without a server too.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.onmessage?.(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = address;
      this.loaded = new Promise((done, failed) => {
        script.onload = done;
        script.onerror = failed;
      });
      this.loaded.catch((event) => this.onerror?.(event));
      inside.document.body.append(script);
    }

    postMessage(data) {
      const message = new MessageEvent("message", { data });
      this.loaded.then(() => this.frame.contentWindow?.onmessage?.(message), () => {});
    }

    terminate() {
      this.frame.remove();
    }
  };
}
