// Logic-ts is a logic tier as somebody may have it who puts Sluice in front: one method, ReceiveMessage, and answers to
// users through Send on a gateway's internal port. The gateway runs with relay.mode unary.
//
// It keeps everything in memory, bounded, so that it stays short: a real one stores a message before it says OK, and does
// not begin to count again when it is restarted.
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import * as grpc from "@grpc/grpc-js";
import * as loader from "@grpc/proto-loader";
import { Codec } from "./codec.js";
import { Pusher, type GatewayClient } from "./pusher.js";
import { Tier } from "./tier.js";

// shutdownMax bounds how long calls may take to end.
const shutdownMax = 5000;

const { values: flags } = parseArgs({
  options: {
    listen: { type: "string", default: "127.0.0.1:9300" },
    gateway: { type: "string", default: "127.0.0.1:9090" }, // the internal port of any gateway; it finds users on the others too
    token: { type: "string", default: process.env.SLUICE_INTERNAL_TOKEN ?? "" }, // the gateway's internal.token
    proto: { type: "string", default: fileURLToPath(new URL("../../../api/proto", import.meta.url)) },
  },
});

const definitions = loader.loadSync(["sluice/state/v1/state.proto", "sluice/gateway/v1/gateway.proto"], {
  includeDirs: [flags.proto], longs: String, enums: String, defaults: true,
});
const proto = grpc.loadPackageDefinition(definitions) as unknown as {
  sluice: {
    state: { v1: { StateServer: { service: grpc.ServiceDefinition } } };
    gateway: { v1: { Gateway: new (addr: string, credentials: grpc.ChannelCredentials) => GatewayClient & grpc.Client } };
  };
};

const codec = new Codec(flags.proto);
const gateway = new proto.sluice.gateway.v1.Gateway(flags.gateway, grpc.credentials.createInsecure());
const tier = new Tier(codec, new Pusher(codec, gateway, flags.token));

const server = new grpc.Server();
// The other methods answer UNIMPLEMENTED: the gateway remembers that and goes on without them.
server.addService(proto.sluice.state.v1.StateServer.service, { ReceiveMessage: tier.receiveMessage });
server.bindAsync(flags.listen, grpc.ServerCredentials.createInsecure(), (err, port) => {
  if (err) {
    console.error(`logic-ts: ${err.message}`);
    process.exit(1);
  }
  console.error(`listening on port ${port}, sending through ${flags.gateway}`);
});

for (const signal of ["SIGTERM", "SIGINT"] as const) {
  process.once(signal, () => {
    setTimeout(() => server.forceShutdown(), shutdownMax).unref();
    server.tryShutdown(() => gateway.close());
  });
}
