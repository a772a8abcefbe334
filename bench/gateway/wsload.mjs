// Generate WebSocket load on raw TCP. Without a framing library, it uses little CPU beside the
// proxy under test.
//
//   node wsload.mjs URL SECONDS CONNECTIONS [PAYLOAD]
//
// A closed loop: every connection keeps exactly one message in flight. Prints START after a second
// of warm-up, then one line of JSON. URL is ws://host:port/path; WS_COOKIE adds a header.
import crypto from "node:crypto";
import net from "node:net";

const [url, secondsArg, connectionsArg, payloadArg] = process.argv.slice(2);
const seconds = Number(secondsArg);
const connections = Number(connectionsArg);
const payload = Number(payloadArg || 64);
if (payload > 125) throw new Error("payload must be <= 125 bytes");
const { hostname, port, pathname, search } = new URL(url);

// One masked text frame; a zero masking key is legal and keeps the bytes fixed.
const frame = Buffer.concat([Buffer.from([0x81, 0x80 | payload, 0, 0, 0, 0]), Buffer.alloc(payload, 0x61)]);
const replyLength = 2 + payload;

const sockets = [];
const roundTrips = [];
let opened = 0;
let failed = 0;
let measuring = false;
let done = false;
let start;

function fail(reason) {
  if (done) return;
  failed++;
  process.stderr.write(`fail: ${reason}\n`);
  if (opened < connections) process.exit(1);
}

function connect() {
  const socket = net.connect({ host: hostname, port: Number(port) });
  socket.setNoDelay(true);
  const key = crypto.randomBytes(16).toString("base64");
  const cookie = process.env.WS_COOKIE ? `Cookie: ${process.env.WS_COOKIE}\r\n` : "";
  socket.write(
    `GET ${pathname}${search} HTTP/1.1\r\nHost: ${hostname}:${port}\r\n` +
      `Upgrade: websocket\r\nConnection: Upgrade\r\nOrigin: http://${hostname}:${port}\r\n` +
      `Sec-WebSocket-Key: ${key}\r\nSec-WebSocket-Version: 13\r\n${cookie}\r\n`,
  );
  let isOpen = false;
  let head = "";
  let received = 0;
  socket.on("data", (chunk) => {
    if (!isOpen) {
      head += chunk.toString("latin1");
      const end = head.indexOf("\r\n\r\n");
      if (end < 0) return;
      if (!head.startsWith("HTTP/1.1 101")) return fail(head.split("\r\n")[0]);
      isOpen = true;
      if (++opened === connections) begin();
      return;
    }
    received += chunk.length;
    while (received >= replyLength) {
      received -= replyLength;
      const now = performance.now();
      if (measuring) roundTrips.push(now - socket.sentAt);
      if (done) return;
      socket.sentAt = now;
      socket.write(frame);
    }
  });
  socket.on("error", (error) => fail(error.code));
  socket.on("close", () => fail("closed"));
  sockets.push(socket);
}

function begin() {
  for (const socket of sockets) {
    socket.sentAt = performance.now();
    socket.write(frame);
  }
  setTimeout(() => {
    measuring = true;
    start = performance.now();
    process.stdout.write("START\n");
  }, 1000);
  setTimeout(end, 1000 + seconds * 1000);
}

function end() {
  const took = (performance.now() - start) / 1000;
  done = true;
  roundTrips.sort((a, b) => a - b);
  const percentile = (p) => roundTrips[Math.min(roundTrips.length - 1, Math.floor((p / 100) * roundTrips.length))];
  console.log(
    JSON.stringify({
      requests: roundTrips.length,
      rate: roundTrips.length / took,
      p50_ms: percentile(50),
      p99_ms: percentile(99),
      errors: failed,
    }),
  );
  process.exit(0);
}

for (let i = 0; i < connections; i++) connect();
