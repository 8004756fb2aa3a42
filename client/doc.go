// Package client is the Go SDK of Sluice: a client that sends every message until the server has it, and shows every
// received one once and in order, across bad networks, restarts and reconnects.
//
// A Client is made with New and lives in Run. Send queues a message and returns at once; its Outgoing handle tells the
// one outcome, STORED or FAILED. What arrives comes by the callbacks of Handlers, one at a time.
//
//	cfg := client.Default()
//	cfg.URL, cfg.Token = "wss://chat.example.org/ws", token
//	cfg.Handlers.OnMessage = func(m client.Message) { fmt.Println(m.FromUID, m.Content) }
//	c, err := client.New(cfg)
//	…
//	go c.Run(ctx)
//	out, err := c.Send(client.Draft{To: "bob", Content: "hello"})
//	…
//	_, err = out.Wait(ctx)
//
// The protocol itself is client/internal/core, a state machine without I/O. This package is the shell around it:
// dial.go opens a connection, link.go reads and writes it, session.go drives the machine over it, reconnect.go goes from
// one connection to the next, backlog.go calls the application.
//
// # Goroutines
//
// Run itself is the session loop. While it runs there are at most: a reader and a writer for the connection, the same
// for one that is being replaced, one that dials the replacement, one for the callbacks, one that saves watermarks. All
// of them have ended when Run returns.
package client
