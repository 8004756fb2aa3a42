package client_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-im/sluice/client"
)

// A client that answers everything it gets, keeps what it could not send in a file, and ends when ctx does.
func Example() {
	answer := func(ctx context.Context, url, token string) error {
		cfg := client.Default()
		cfg.URL, cfg.Token = url, token
		cfg.Queue = client.NewFileQueue("queue.json")
		cfg.Watermarks = client.NewFileWatermarks("watermarks.json")
		var c *client.Client
		cfg.Handlers.OnMessage = func(m client.Message) {
			if _, err := c.Send(client.Draft{To: m.FromUID, Content: "you said " + m.Content}); err != nil {
				fmt.Println(err)
			}
		}
		cfg.Handlers.OnState = func(s client.StateChange) {
			if s.State == client.Failed {
				fmt.Println("not known to be stored:", s.UUID, s.Reason)
			}
		}
		c, err := client.New(cfg)
		if err != nil {
			return err
		}
		var ending *client.Ending
		if err = c.Run(ctx); errors.As(err, &ending) {
			fmt.Println("the gateway does not want this client back:", ending.Reason)
		}
		return err
	}
	_ = answer
}
