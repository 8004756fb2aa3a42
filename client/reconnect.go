package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
)

const (
	// stableAfter is how long a connection must have lived for the next attempt to be a first one again: a gateway that
	// takes logins and drops them at once must not be hammered.
	stableAfter = 10 * time.Second
	// earlyCommandsMax bounds what the server may say before its LOGIN_REPLY: pushes to a route that is just written.
	earlyCommandsMax = 256
)

// stayConnected goes from one connection to the next. It returns nil when ctx ends, else why it may not go on.
func (c *Client) stayConnected(ctx context.Context) *Ending {
	pause := c.newBackoff()
	var l *link
	for {
		var ending *Ending
		if l == nil {
			l, ending = c.connect(ctx)
		}
		if l != nil {
			since := time.Now()
			l, ending = c.session(ctx, l)
			if time.Since(since) >= stableAfter {
				pause.Reset()
			}
			if l != nil {
				continue
			}
		}
		if !sleep(ctx, 0) {
			return nil
		}
		if final := c.finally(ending); final != nil {
			return final
		}
		wait := max(pause.NextBackOff(), ending.After)
		c.tellConnection(ConnectionEvent{
			State: Disconnected, Reason: ending.Reason, Code: ending.Code, Err: ending.Err, Retry: wait,
		})
		if !sleep(ctx, wait) {
			return nil
		}
	}
}

// newBackoff is exponential with full jitter: with a factor of 1 the library draws from 0 to twice its interval.
func (c *Client) newBackoff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = c.cfg.ReconnectMin/2, c.cfg.ReconnectMax/2
	b.RandomizationFactor, b.Multiplier = 1, 2
	b.Reset()
	return b
}

// finally returns the ending if the client must not come back after it. An expired token is no such ending while there
// is a source of new ones.
func (c *Client) finally(e *Ending) *Ending {
	if e.tokenExpired() {
		if c.cfg.TokenSource == nil {
			return e
		}
		c.dropToken()
		return nil
	}
	if e.Final() {
		return e
	}
	return nil
}

func (c *Client) dropToken() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = ""
}

// sleep waits; false if ctx has ended, or ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	default:
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// credentials returns what to log in with, from the TokenSource if there is nothing better.
func (c *Client) credentials(ctx context.Context) (token, deviceID string, err error) {
	c.mu.Lock()
	token, deviceID = c.token, c.deviceID
	c.mu.Unlock()
	if token != "" {
		return token, deviceID, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.TokenTimeout)
	defer cancel()
	token, err = c.cfg.TokenSource(ctx)
	if err != nil {
		return "", "", fmt.Errorf("token source: %w", err)
	}
	if token == "" {
		return "", "", errors.New("token source: empty token")
	}
	c.mu.Lock()
	c.token = token
	c.mu.Unlock()
	return token, deviceID, nil
}

// connect dials and logs in, or says why not.
func (c *Client) connect(ctx context.Context) (*link, *Ending) {
	token, deviceID, err := c.credentials(ctx)
	if err != nil {
		return nil, endingOf(err)
	}
	l, err := c.establish(ctx, token, deviceID)
	if err != nil {
		return nil, endingOf(err)
	}
	return l, nil
}

// establish takes ConnectTimeout at most.
func (c *Client) establish(ctx context.Context, token, deviceID string) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ConnectTimeout)
	defer cancel()
	nc, protocol, rest, err := c.dial(ctx, token, deviceID)
	if err != nil {
		return nil, err
	}
	l := newLink(nc, protocol, rest, c.cfg.WriteTimeout)
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() }) // Ends a login that takes too long.
	err = c.login(l, token, deviceID)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = nc.Close() // The login failed; there is nothing to lose.
		if ctx.Err() != nil {
			err = fmt.Errorf("login: %w", ctx.Err())
		}
		return nil, err
	}
	return l, nil
}

// login says who this is, and waits for the answer. After a login at the upgrade a LOGIN without data asks for the same
// answer: without it the limits and the connection's id were unknown.
func (c *Client) login(l *link, token, deviceID string) error {
	var login codec.Message
	if c.cfg.LoginBy == LoginByCommand {
		login = &clientv1.Login{Token: token, DeviceId: deviceID, Platform: c.cfg.Platform, SessionId: c.sessionID}
	}
	command := codec.AppendCommand(nil, clientv1.CommandType_LOGIN, 0, login)
	frame, err := codec.AppendClientFrame(l.protocol, nil, command, maskKey())
	if err != nil {
		return err
	}
	if err := l.flush(frame, l.writeTimeout); err != nil {
		return err
	}
	for {
		f, err := l.next()
		if err != nil {
			return err
		}
		var cmd clientv1.Command
		if err := cmd.UnmarshalVT(f.Payload); err != nil {
			return fmt.Errorf("login: decode command: %w", err)
		}
		switch cmd.Type {
		case clientv1.CommandType_LOGIN_REPLY:
			return c.accept(l, cmd.Data)
		case clientv1.CommandType_ERROR:
			return refusedLogin(&cmd)
		case clientv1.CommandType_KICK:
			return kicked(&cmd)
		default:
			if len(l.early) >= earlyCommandsMax {
				return &Ending{Reason: reason.ProtocolError.String(), Err: errors.New("too much before LOGIN_REPLY")}
			}
			l.early = append(l.early, slices.Clone(f.Payload))
		}
	}
}

// accept takes the LOGIN_REPLY.
func (c *Client) accept(l *link, data []byte) error {
	reply := &clientv1.LoginReply{}
	if err := reply.UnmarshalVT(data); err != nil {
		return fmt.Errorf("decode LOGIN_REPLY: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if uid := c.machine.UID(); uid != "" && uid != reply.Uid {
		return &Ending{
			Reason: reason.WrongIdentity.String(), Code: reason.WrongIdentity.Code(),
			Err: fmt.Errorf("%w: of %s, the token is %s's", ErrOtherUser, uid, reply.Uid),
		}
	}
	l.reply = reply
	if reply.DeviceId != "" {
		c.deviceID = reply.DeviceId
	}
	return nil
}

func refusedLogin(cmd *clientv1.Command) error {
	var e clientv1.Error
	if err := e.UnmarshalVT(cmd.Data); err != nil {
		return fmt.Errorf("login: decode ERROR: %w", err)
	}
	return endingOfError(cmd.Code, &e)
}

func kicked(cmd *clientv1.Command) error {
	var k clientv1.Kick
	if err := k.UnmarshalVT(cmd.Data); err != nil {
		return fmt.Errorf("decode KICK: %w", err)
	}
	return endingOfKick(cmd.Code, &k)
}
