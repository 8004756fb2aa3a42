// Documents-client is a client as the source documents describe one, written without Sluice's packages: gorilla/websocket,
// a pending queue that stops and waits, and only the messages Command, MessageUp and MessageAck. It logs in with a token at
// the WebSocket upgrade. Each line of its input is one message; it ends when all are answered.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if err := run(); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "documents-client:", err)
		os.Exit(1)
	}
}

func run() error {
	c := client{out: os.Stdout}
	flag.StringVar(&c.url, "url", "ws://127.0.0.1:8080/ws", "where the gateway listens")
	flag.StringVar(&c.token, "token", os.Getenv("TOKEN"), "who this is; default: $TOKEN")
	flag.StringVar(&c.to, "to", "", "the receiver's user id, or a group's id")
	flag.StringVar(&c.pending.path, "pending", "", "file in which unanswered messages survive the end of the program")
	flag.DurationVar(&c.timeout, "timeout", 5*time.Second, "how long to wait for an answer until the message is sent again")
	flag.Parse()
	if c.to == "" || c.token == "" {
		flag.Usage()
		return errors.New("-to and -token are needed")
	}
	if err := c.pending.load(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return c.run(ctx, input(ctx))
}

// input gives the lines of standard input, and is closed at their end. Its goroutine ends with the program: nothing can
// interrupt a read of a terminal.
func input(ctx context.Context) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			select {
			case lines <- in.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return lines
}
