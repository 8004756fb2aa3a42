import * as grpc from "@grpc/grpc-js";
import type { Codec, MessageDown } from "./codec.js";

// queueMax bounds what waits for the gateway; at a millisecond a call it is a second's worth.
const queueMax = 1000;
// sendMax bounds one call.
const sendMax = 5000;

interface SendRequest { payload: Uint8Array; recipients: { uid: string; deviceId?: string }[] }
interface SendResponse { results: { uid: string; deviceId: string; result: string }[] }

export interface GatewayClient {
  Send(request: SendRequest, metadata: grpc.Metadata, options: grpc.CallOptions,
    callback: (err: grpc.ServiceError | null, reply?: SendResponse) => void): void;
}

// Pusher sends messages to users, one after another, so that they leave in order.
export class Pusher {
  private readonly queue: { to: string; message: MessageDown }[] = [];
  private sending = false;

  constructor(private readonly codec: Codec, private readonly gateway: GatewayClient, private readonly token: string) {}

  // push does not wait: who holds a gateway's call longer than its 300 ms only makes the client send again.
  push(to: string, message: MessageDown): void {
    if (this.queue.length >= queueMax) {
      console.error(`to ${to}: message ${message.msgId} is not sent, the queue is full`);
      return;
    }
    this.queue.push({ to, message });
    if (!this.sending) void this.run();
  }

  private async run(): Promise<void> {
    this.sending = true;
    for (let it = this.queue.shift(); it; it = this.queue.shift()) await this.send(it.to, it.message);
    this.sending = false;
  }

  // send calls Send. It answers for each device what became of the payload; of the call's own error it is not known.
  private send(to: string, message: MessageDown): Promise<void> {
    const metadata = new grpc.Metadata();
    if (this.token) metadata.set("authorization", `Bearer ${this.token}`);
    const request = { payload: this.codec.down(message), recipients: [{ uid: to }] };
    return new Promise((done) => {
      this.gateway.Send(request, metadata, { deadline: Date.now() + sendMax }, (err, reply) => {
        if (err) console.error(`to ${to}: message ${message.msgId}: not known whether it was sent: ${err.message}`);
        for (const r of reply?.results ?? []) console.error(`to ${r.uid}, device "${r.deviceId}": message ${message.msgId}: ${r.result}`);
        done();
      });
    });
  }
}
