import * as path from "node:path";
import protobuf from "protobufjs";

// The parts of sluice/client/v1/client.proto that this tier uses.
export interface MessageUp { uuid: string; type: number; content: string; receiverId: string; body: Uint8Array }
export interface MessageAck { uuid: string; status: "ACK_OK" | "ACK_RETRY" | "ACK_FAIL"; msgId: string; convId: string; seq: number; serverAtMs: number }
export interface MessageDown {
  msgId: string; convId: string; seq: number; type: number; fromUid: string; content: string; body: Uint8Array; serverAtMs: number; uuid: string;
}

// Codec reads and writes Commands, the payload of every frame.
export class Codec {
  private readonly root: protobuf.Root;

  constructor(protoDir: string) {
    this.root = protobuf.loadSync(path.join(protoDir, "sluice/client/v1/client.proto"));
  }

  // decode throws when payload is not a Command. A type that is not known stays a number.
  decode(payload: Uint8Array): { type: string | number; data: Uint8Array } {
    return this.read("Command", payload) as { type: string | number; data: Uint8Array };
  }

  // messageUp throws when data is not a MessageUp.
  messageUp(data: Uint8Array): MessageUp {
    return this.read("MessageUp", data) as unknown as MessageUp;
  }

  ack(m: MessageAck): Uint8Array { return this.command("MESSAGEACK", "MessageAck", m); }

  down(m: MessageDown): Uint8Array { return this.command("MESSAGEDOWN", "MessageDown", m); }

  private read(name: string, bytes: Uint8Array): Record<string, unknown> {
    const type = this.root.lookupType(`sluice.client.v1.${name}`);
    return type.toObject(type.decode(bytes), { defaults: true, enums: String, longs: Number });
  }

  private command(type: string, name: string, m: object): Uint8Array {
    return this.write("Command", { type, data: this.write(name, m) });
  }

  private write(name: string, m: object): Uint8Array {
    const type = this.root.lookupType(`sluice.client.v1.${name}`);
    return type.encode(type.fromObject(m)).finish();
  }
}
