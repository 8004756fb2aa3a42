package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/mattn/go-isatty"

	"github.com/sluice-im/sluice/client"
	"github.com/sluice-im/sluice/cmd/internal/program"
)

// chatLineMax bounds a line of input: a frame's worth of text, with room for escapes in JSON.
const chatLineMax = 256 << 10

// chatCmd is the terminal client. The same program in scripts and tests: --json in and out, an end that can be asked for.
type chatCmd struct {
	URL    string `name:"url" required:"" help:"Where the gateway listens: ws://host:port/ws, wss, tcp://host:port or tls."`
	Token  string `required:"" env:"SLUICE_TOKEN" help:"Who you are; see sluice token." placeholder:"T"`
	To     string `help:"Receiver of lines that name none: a user, or a group (g:...)." placeholder:"UID"`
	JSON   bool   `name:"json" help:"One event a line out; one message a line in: {\"to\":\"bob\",\"text\":\"hi\",\"uuid\":\"...\"}."`
	Device string `help:"Device id; empty = the gateway makes one." placeholder:"D"`
	Login  string `help:"How the token travels." enum:"command,header" default:"command"`
	CA     string `name:"ca" help:"PEM file of the authority that signed the gateway's certificate." placeholder:"FILE" type:"path"`

	Count         int           `help:"Send N numbered messages instead of lines from the input." placeholder:"N"`
	Linger        bool          `help:"Stay and receive when the input has ended; always so when it is a terminal."`
	WaitReceived  int           `help:"Leave when the input has ended, everything has its outcome, and N messages were received." placeholder:"N"`
	WaitDelivered bool          `help:"Leave only when every stored message was delivered too."`
	Timeout       time.Duration `help:"Fail if it has not ended by then; 0 = never." placeholder:"D"`
	MarkRead      bool          `help:"Mark every message read once it is shown."`

	StateDir      string        `help:"Keep unsent messages and what was received in this directory, so that the next start goes on there." placeholder:"DIR" type:"path"`
	QueueMax      int           `help:"Messages that may be unsettled at once; more input waits." default:"1000"`
	ResendTimeout time.Duration `help:"How long the first answer may take." default:"5s"`
	Resends       int           `help:"Resends without an answer before a message has failed." default:"3"`
	GiveUp        time.Duration `help:"How long a message may be answered RETRY." default:"60s"`
}

// Run talks until there is nothing left to do, or until it is interrupted.
func (c *chatCmd) Run(ctx context.Context) error {
	if isatty.IsTerminal(os.Stdin.Fd()) && c.Count == 0 {
		c.Linger = true
	}
	return c.chat(ctx, os.Stdin, os.Stdout)
}

// chat is Run with its input and output.
func (c *chatCmd) chat(ctx context.Context, in io.Reader, out io.Writer) error {
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.Timeout, errChatTimeout)
		defer cancel()
	}
	t := newTranscript(c, out)
	cfg, err := c.config(t)
	if err != nil {
		return fmt.Errorf("%w: %w", program.ErrUsage, err)
	}
	cl, err := client.New(cfg)
	if err != nil {
		return err
	}
	t.client = cl
	stopped := make(chan error, 1)
	// Ended by Close below, or by the server.
	go func() { stopped <- cl.Run(context.WithoutCancel(ctx)) }()
	talked := make(chan error, 1)
	// Ended by ctx; a read of the input that hangs ends with the process.
	go func() { talked <- c.talk(ctx, cl, t, in) }()
	select {
	case err = <-talked:
	case <-ctx.Done():
	case err := <-stopped:
		return errors.Join(err, t.broken())
	}
	cl.Close()
	if stop := <-stopped; stop != nil {
		return stop
	}
	switch {
	case t.broken() != nil:
		return t.broken()
	case errors.Is(context.Cause(ctx), errChatTimeout):
		return errChatTimeout
	case errors.Is(err, context.Canceled):
		return nil // Interrupted, which is how one leaves.
	}
	return err
}

var errChatTimeout = errors.New("timeout: not everything that was waited for has happened")

func (c *chatCmd) config(t *transcript) (client.Config, error) {
	cfg := client.Default()
	cfg.URL, cfg.Token, cfg.DeviceID, cfg.LoginBy, cfg.Platform = c.URL, c.Token, c.Device, client.LoginBy(c.Login), "cli"
	cfg.QueueMax, cfg.ResendTimeout, cfg.Resends, cfg.GiveUp = c.QueueMax, c.ResendTimeout, c.Resends, c.GiveUp
	cfg.Handlers = t.handlers()
	if c.CA != "" {
		trusted, err := trusting(c.CA)
		if err != nil {
			return cfg, err
		}
		cfg.TLS = trusted
	}
	if c.StateDir != "" {
		if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
			return cfg, err
		}
		cfg.Queue = client.NewFileQueue(filepath.Join(c.StateDir, "queue.json"))
		cfg.Watermarks = client.NewFileWatermarks(filepath.Join(c.StateDir, "watermarks.json"))
	}
	return cfg, cfg.Validate()
}

// talk sends the input and then waits for what was asked for.
func (c *chatCmd) talk(ctx context.Context, cl *client.Client, t *transcript, in io.Reader) error {
	s := &sender{client: cl, open: cl.Unsettled(), openMax: c.QueueMax}
	next := c.lines(in)
	for {
		d, err := next()
		if errors.Is(err, io.EOF) {
			break
		}
		var bad *lineError
		if err == nil {
			if d.UUID == "" {
				d.UUID = uuid.NewString()
			}
			t.sending(d)
			err = s.send(ctx, d)
		}
		switch {
		case errors.As(err, &bad):
			t.complain(err)
		case err != nil:
			return err
		}
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	delivered := 0
	if c.WaitDelivered {
		delivered = s.stored
	}
	if err := t.wait(ctx, c.WaitReceived, delivered); err != nil {
		return err
	}
	if c.Linger && c.WaitReceived == 0 {
		<-ctx.Done()
	}
	return nil
}

// lineError is a line of input that is no message; the next one may be.
type lineError struct{ err error }

func (e *lineError) Error() string { return e.err.Error() }

func (e *lineError) Unwrap() error { return e.err }

// inputLine is a message as a line of JSON.
type inputLine struct {
	To   string `json:"to"`
	Text string `json:"text"`
	UUID string `json:"uuid"`
	Type int32  `json:"type"`
}

// lines returns the messages of the input, one a call, io.EOF at its end.
func (c *chatCmd) lines(in io.Reader) func() (client.Draft, error) {
	if c.Count > 0 {
		n := 0
		return func() (client.Draft, error) {
			if n++; n > c.Count {
				return client.Draft{}, io.EOF
			}
			return client.Draft{To: c.To, Type: 1, Content: strconv.Itoa(n)}, nil
		}
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, chatLineMax)
	return func() (client.Draft, error) {
		for lines.Scan() {
			if len(lines.Bytes()) > 0 {
				return c.draft(lines.Bytes())
			}
		}
		if err := lines.Err(); err != nil {
			return client.Draft{}, fmt.Errorf("read input: %w", err)
		}
		return client.Draft{}, io.EOF
	}
}

// draft is one line of input.
func (c *chatCmd) draft(line []byte) (client.Draft, error) {
	l := inputLine{To: c.To, Text: string(line), Type: 1}
	if c.JSON {
		l.Text = ""
		if err := json.Unmarshal(line, &l); err != nil {
			return client.Draft{}, &lineError{fmt.Errorf("input is no JSON message: %w", err)}
		}
	}
	if l.To == "" {
		return client.Draft{}, &lineError{errors.New("no receiver: give --to, or \"to\" in the line with --json")}
	}
	return client.Draft{UUID: l.UUID, To: l.To, Type: l.Type, Content: l.Text}, nil
}

// sender keeps the queue full, but not fuller.
type sender struct {
	client *client.Client
	// open are the messages whose outcome was not looked at, oldest first; bounded by openMax.
	open    []*client.Outgoing
	openMax int
	// stored counts those whose outcome was good.
	stored int
}

// send queues one message, when there is room for it.
func (s *sender) send(ctx context.Context, d client.Draft) error {
	for {
		if len(s.open) >= s.openMax {
			if err := s.oldest(ctx); err != nil {
				return err
			}
		}
		o, err := s.client.Send(d)
		switch {
		case err == nil:
			s.open = append(s.open, o)
			return nil
		case !errors.Is(err, client.ErrQueueFull) || len(s.open) == 0:
			if errors.Is(err, client.ErrClosed) {
				return err
			}
			return &lineError{err}
		}
		if err := s.oldest(ctx); err != nil {
			return err
		}
	}
}

// oldest waits for the outcome of the oldest message.
func (s *sender) oldest(ctx context.Context) error {
	_, err := s.open[0].Wait(ctx)
	var failed *client.FailedError
	switch {
	case err == nil:
		s.stored++
	case !errors.As(err, &failed):
		return err
	}
	s.open[0] = nil
	s.open = s.open[1:]
	return nil
}

// settle waits for all outcomes.
func (s *sender) settle(ctx context.Context) error {
	for len(s.open) > 0 {
		if err := s.oldest(ctx); err != nil {
			return err
		}
	}
	return nil
}
