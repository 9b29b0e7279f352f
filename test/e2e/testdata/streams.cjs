// Reads the stream of one chat with a package from npm and prints its events
// as a JSON array of {id, event, data}.
//
//   node streams.cjs <reader> <module> <url> <headers> <body> <cut>
//
// The connection breaks once, when it has brought as many events as cut says;
// 0 lets it stand.
const [reader, modulePath, url, headers, body, cut] = process.argv.slice(2);
const module_ = require(modulePath);

// Both readers that reconnect are made for pages.
globalThis.window = globalThis;
globalThis.document = { addEventListener() {}, removeEventListener() {}, hidden: false };

const events = [];
const add = (id, event, data) => events.push({ id: id ?? "", event: event ?? "", data });

let left = Number(cut);
let requests = 0;

// post sends the chat whatever method the reader would use, and breaks the body.
async function post(input, init = {}) {
  requests++;
  const response = await fetch(input, {
    ...init, method: "POST", body, headers: { ...init.headers, ...JSON.parse(headers), "content-type": "application/json" },
  });
  if (left === 0 || !response.ok) return response;
  const source = response.body.getReader();
  let rest = Buffer.alloc(0); // what is no whole block yet
  return new Response(new ReadableStream({
    async pull(controller) {
      if (left === 0) {
        await source.cancel();
        return controller.error(new Error("the connection breaks"));
      }
      const { done, value } = await source.read();
      if (done) return controller.close();
      rest = Buffer.concat([rest, value]);
      let whole = 0;
      for (let end; left > 0 && (end = rest.indexOf("\n\n", whole)) >= 0; whole = end + 2) {
        if (rest[whole] !== ":".charCodeAt(0)) left--;
      }
      controller.enqueue(new Uint8Array(rest.subarray(0, whole)));
      rest = rest.subarray(whole);
    },
  }), { status: response.status, headers: response.headers });
}

const finish = () => {
  process.stdout.write(JSON.stringify({ events, requests }));
  process.exit(0);
};

async function parser() {
  const p = module_.createParser({ onEvent: (e) => add(e.id, e.event, e.data), onError: (e) => { throw e; } });
  const response = await post(url, { headers: { accept: "text/event-stream" } });
  const decoder = new TextDecoder();
  for await (const chunk of response.body) p.feed(decoder.decode(chunk, { stream: true }));
  finish();
}

function eventSource() {
  const source = new module_.EventSource(url, { fetch: post });
  const on = (e) => {
    if (e.data === undefined) return; // the connection, not an event
    add(e.lastEventId, e.type === "message" ? "" : e.type, e.data);
    if (e.type === "done") {
      source.close();
      finish();
    }
  };
  for (const type of ["message", "ui", "error", "done"]) source.addEventListener(type, on);
}

function fetchEventSource() {
  module_.fetchEventSource(url, {
    method: "POST", body, headers: { ...JSON.parse(headers) }, fetch: post, openWhenHidden: true,
    onmessage: (e) => e.event === "" && e.data === "" || add(e.id, e.event, e.data),
    onerror: () => 10, // milliseconds until the next try
    onclose: finish,
  });
}

({ parser, eventSource, fetchEventSource })[reader]();
