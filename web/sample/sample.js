"use strict";
// A client of the JSON subprotocol in one file. The sender stops and waits: one message on its way, sent again with the
// same uuid until it is answered. The receiver takes each (conversation, seq) once, in order, and says how far it is.
const ACK_WAIT = 5000, ACK_WAIT_MAX = 40000, AGAIN = 1000, HEARTBEAT = 25000, BACKOFF = 500, BACKOFF_MAX = 10000;
const SHOWN_MAX = 200, QUEUE_MAX = 100; // a page that is left open must not grow without end

class Pane {
  constructor(el, user, peer, url) {
    Object.assign(this, { el, user, peer, url, queue: [], own: new Map(), convs: new Map(), syncedAt: "0", failures: 0 });
    this.home = "u:" + [user.uid, peer.uid].sort().join(":");
    this.device = "page-" + crypto.randomUUID(); // what it has seen, it knows as long as it is open: each load is a new device
    el.querySelector("b").textContent = user.uid;
    el.querySelector("h2 button").onclick = () => this.toggle();
    el.querySelector("form").onsubmit = (e) => { e.preventDefault(); this.write(e.target.querySelector("input")); };
    setInterval(() => Date.now() - this.heard > 2.5 * HEARTBEAT ? this.ws.close() : this.send("HEARTBEAT"), HEARTBEAT);
    this.connect();
  }

  // The line.
  connect() {
    const ws = this.ws = new WebSocket(`${this.url}?device_id=${this.device}&session_id=${this.device}`, ["sluice.v1.json", "bearer." + this.user.token]);
    const current = (f) => (e) => { if (ws === this.ws) f(e); };
    ws.onopen = current(() => { this.failures = 0; this.heard = Date.now(); this.say("online"); this.sync(); this.pump(); });
    ws.onmessage = current((e) => { this.heard = Date.now(); this.receive(JSON.parse(e.data)); });
    ws.onclose = current((e) => {
      clearTimeout(this.timer);
      if (this.cut) return;
      this.cut = e.code >= 4500 && e.code < 5000; // "do not come back by yourself"
      this.say(this.cut ? `closed: ${e.reason || e.code}` : "line lost, trying again");
      if (!this.cut) this.again = setTimeout(() => this.connect(), Math.random() * Math.min(BACKOFF * 2 ** this.failures++, BACKOFF_MAX));
    });
    this.say("connecting");
  }
  toggle() {
    this.cut = !this.cut; clearTimeout(this.again);
    if (this.cut) { this.ws.close(); this.say("line cut"); } else this.connect();
  }
  get open() { return this.ws.readyState === WebSocket.OPEN; }
  send(type, payload) { if (this.open) this.ws.send(JSON.stringify({ type, ...payload })); }
  say(text) {
    this.el.classList.toggle("online", this.open);
    this.el.querySelector("small").textContent = text;
    this.el.querySelector("h2 button").textContent = this.cut ? "Reconnect" : "Cut the line";
  }
  receive({ type, messageAck, messageDown, deliveredNotice, syncReply, pullReply, error }) {
    if (type === "MESSAGEACK") this.acked(messageAck);
    if (type === "MESSAGEDOWN") this.down(messageDown);
    if (type === "DELIVERED_NOTICE") this.reached(deliveredNotice.convId, +deliveredNotice.seq);
    if (type === "SYNC_REPLY") this.synced(syncReply);
    if (type === "PULL_REPLY") this.pulled(pullReply);
    if (type === "RESYNC") this.sync();
    if (type !== "ERROR") return;
    if (error.command === "SYNC" || error.command === "PULL") setTimeout(() => this.sync(), Math.max(error.retryAfterMs, AGAIN));
    else this.say(`error: ${error.reason}`);
  }

  // The sender.
  write(input) {
    if (!input.value || this.queue.length >= QUEUE_MAX) return;
    const m = { uuid: crypto.randomUUID(), from: this.user.uid, text: input.value };
    input.value = "";
    this.queue.push(m);
    this.place(m);
    if (this.queue[0] === m) this.pump();
  }
  pump(wait = ACK_WAIT) { // sends the head of the queue, for the first time or again
    clearTimeout(this.timer);
    const m = this.queue[0];
    if (!m || !this.open) return;
    this.send("MESSAGEUP", { messageUp: { uuid: m.uuid, type: 1, content: m.text, receiverId: this.peer.uid } });
    this.timer = setTimeout(() => this.pump(Math.min(2 * wait, ACK_WAIT_MAX)), wait);
    this.place(Object.assign(m, { sent: true }));
  }
  acked({ uuid, status, convId, seq, retryAfterMs }) {
    const m = this.own.get(uuid);
    if (status === "ACK_OK" && m) this.take(convId, +seq, m);
    if (!m || m !== this.queue[0]) return;
    clearTimeout(this.timer);
    if (status === "ACK_RETRY") this.timer = setTimeout(() => this.pump(), retryAfterMs || AGAIN);
    else this.settle(Object.assign(m, { failed: status !== "ACK_OK" }));
  }
  settle(m) {
    this.place(m);
    if (m !== this.queue[0]) return;
    this.queue.shift();
    this.pump();
  }

  // The receiver. Of a conversation: mark = taken without a hole up to here, top = known to exist, reached = the other side's mark.
  conv(id) {
    if (!this.convs.has(id)) this.convs.set(id, { mark: this.syncedAt === "0" ? null : 0, top: 0, reached: 0 });
    return this.convs.get(id);
  }
  sync(cursor = "") { this.send("SYNC", { sync: { sinceMs: this.syncedAt, cursor } }); }
  synced({ conversations, cursor, hasMore, serverTimeMs }) {
    for (const s of conversations) {
      const c = this.conv(s.convId);
      c.mark = Math.max(c.mark ?? +s.readSeq, +s.floorSeq);
      c.top = Math.max(c.top, +s.maxSeq);
      this.reached(s.convId, Math.max(s.peerDelivered, s.peerRead));
    }
    if (hasMore) return this.sync(cursor);
    this.syncedAt = serverTimeMs;
    for (const [id, c] of this.convs) { c.mark ??= 0; c.pulling = false; this.report(id, c); }
  }
  pulled({ convId, messages, floorSeq }) {
    const c = this.conv(convId), before = c.mark;
    c.mark = Math.max(c.mark, +floorSeq);
    for (const d of messages) this.down(d);
    if (c.mark === before) c.top = c.mark; // there is nothing to come
    c.pulling = false;
    this.report(convId, c);
  }
  down({ convId, seq, uuid, fromUid, content }) {
    const mine = fromUid === this.user.uid && this.own.get(uuid);
    this.take(convId, +seq, mine || { uuid, from: fromUid, text: content });
    if (mine) this.settle(mine); // it was stored, whatever became of its answer
  }
  take(convId, seq, m) {
    const c = this.conv(convId), next = c.mark !== null && seq === c.mark + 1;
    c.top = Math.max(c.top, seq);
    if (next) c.mark = seq;
    if (convId === this.home && (next || m.li)) this.place(Object.assign(m, { seq }));
    if (c.mark !== null && !c.pulling) this.report(convId, c); // else the SYNC_REPLY or PULL_REPLY does
  }
  report(convId, c) { // also of what came twice: what was said of the first may be lost
    if (c.mark) this.send("DELIVERED", { delivered: { convId, seq: String(c.mark) } });
    if (c.top > c.mark && !c.pulling) { c.pulling = true; this.send("PULL", { pull: { convId, afterSeq: String(c.mark) } }); }
  }
  reached(convId, seq) {
    const c = this.conv(convId);
    c.reached = Math.max(c.reached, seq);
    for (const m of this.own.values()) this.place(m);
  }

  // What is shown: ordered by seq; what has none yet stands at the end.
  place(m) {
    const list = this.el.querySelector("ol"), mine = m.from === this.user.uid;
    const li = m.li ??= Object.assign(document.createElement("li"), { textContent: m.text, className: mine ? "own" : "", m });
    if (mine) this.own.set(m.uuid, m);
    if (mine) li.dataset.state = m.seq ? (m.seq <= this.conv(this.home).reached ? "DELIVERED" : "STORED") : m.failed ? "FAILED" : m.sent ? "SENT" : "LOCAL";
    if (li.isConnected && li.order === m.seq) return;
    li.order = m.seq;
    list.insertBefore(li, [...list.children].find((o) => o !== li && (o.order ?? Infinity) > (li.order ?? Infinity)) ?? null);
    list.scrollTop = list.scrollHeight;
    if (list.children.length > SHOWN_MAX) { this.own.delete(list.firstChild.m.uuid); list.firstChild.remove(); }
  }
}

fetch("session").then((r) => r.json()).then(({ url, users: [a, b] }) => {
  for (const [user, peer] of [[a, b], [b, a]]) {
    const el = document.querySelector("template").content.firstElementChild.cloneNode(true);
    el.id = user.uid;
    document.querySelector("main").append(el);
    new Pane(el, user, peer, url);
  }
});
