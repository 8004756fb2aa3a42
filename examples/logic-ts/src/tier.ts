import * as grpc from "@grpc/grpc-js";
import type { Codec, MessageAck, MessageUp } from "./codec.js";
import type { Pusher } from "./pusher.js";

// knownMax bounds the messages that are remembered; resends of older ones would be new messages. A client gives up after a
// minute, so this is enough for 1,500 messages a second.
const knownMax = 100_000;
// conversationsMax bounds the numbers that are kept; a message of one more conversation is told to come again later.
const conversationsMax = 100_000;

const uidAlphabet = /^[A-Za-z0-9_.@-]{1,128}$/;

interface Request { uid: string; payload: Buffer }
interface Response { responsePayload: Uint8Array }

// Refused is an answer with a status of the truth table in docs/drop-in.md.
class Refused extends Error {
  constructor(readonly code: grpc.status, details: string) { super(details); }
}

// Tier numbers messages and remembers what it has answered.
export class Tier {
  private readonly known = new Map<string, MessageAck>(); // by sender and uuid; a Map keeps the order of insertion
  private readonly seqs = new Map<string, number>();
  private last = 0n; // the last message id

  constructor(private readonly codec: Codec, private readonly pusher: Pusher) {}

  // receiveMessage takes one frame of one user. request.uid is who the gateway has let in; nothing in the frame says that.
  readonly receiveMessage = (call: grpc.ServerUnaryCall<Request, Response>, answer: grpc.sendUnaryData<Response>): void => {
    try {
      answer(null, { responsePayload: this.codec.ack(this.accept(call.request.uid, this.message(call.request.payload))) });
    } catch (err) {
      // Anything unforeseen is UNKNOWN: the client sends again, and after three times the gateway tells it that it failed.
      answer(err instanceof Refused ? { code: err.code, details: err.message } : { code: grpc.status.UNKNOWN, details: String(err) });
    }
  };

  // message is the MessageUp in a frame. INVALID_ARGUMENT and UNIMPLEMENTED mean "no effect, do not try again".
  private message(payload: Uint8Array): MessageUp {
    let type: string | number, up: MessageUp;
    try {
      const cmd = this.codec.decode(payload);
      type = cmd.type;
      up = this.codec.messageUp(type === "MESSAGEUP" ? cmd.data : new Uint8Array());
    } catch {
      throw new Refused(grpc.status.INVALID_ARGUMENT, "not a Command, or not a MessageUp");
    }
    if (type !== "MESSAGEUP") throw new Refused(grpc.status.UNIMPLEMENTED, `no ${type} here`);
    if (!uidAlphabet.test(up.receiverId)) throw new Refused(grpc.status.INVALID_ARGUMENT, "not a MessageUp to a user");
    return up;
  }

  // accept answers a known message as the first time, and numbers and sends a new one.
  private accept(from: string, up: MessageUp): MessageAck {
    const key = `${from}\n${up.uuid}`;
    const before = this.known.get(key);
    if (before) return before;

    const [lower, higher] = from < up.receiverId ? [from, up.receiverId] : [up.receiverId, from];
    const convId = `u:${lower}:${higher}`;
    if (!this.seqs.has(convId) && this.seqs.size >= conversationsMax) {
      throw new Refused(grpc.status.RESOURCE_EXHAUSTED, "too many conversations");
    }
    const seq = (this.seqs.get(convId) ?? 0) + 1;
    this.seqs.set(convId, seq);
    const serverAtMs = Date.now();
    const clock = BigInt(serverAtMs) * 1000n;
    this.last = clock > this.last ? clock : this.last + 1n;
    const ack: MessageAck = { uuid: up.uuid, status: "ACK_OK", msgId: String(this.last), convId, seq, serverAtMs };

    if (this.known.size >= knownMax) this.known.delete(this.known.keys().next().value!);
    this.known.set(key, ack);
    this.pusher.push(up.receiverId, {
      msgId: ack.msgId, convId, seq, type: up.type, fromUid: from, content: up.content, body: up.body, serverAtMs, uuid: up.uuid,
    });
    return ack;
  }
}
