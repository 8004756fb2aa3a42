package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/cmd/internal/program"
)

// groupChunk is how many members one call names; the StateServer takes 10,000.
const groupChunk = 5_000

// groupCmd administers groups at a StateServer.
type groupCmd struct {
	Addr    string        `default:"127.0.0.1:9200" help:"The StateServer's grpc.addr."`
	Token   string        `env:"SLUICE_GRPC_TOKEN" help:"The StateServer's grpc.token." placeholder:"T"`
	CA      string        `name:"ca" help:"Use TLS; PEM file of the authority that signed the StateServer's certificate." placeholder:"FILE" type:"path"`
	Timeout time.Duration `default:"10s" help:"How long one call may take."`

	Create  groupCreate  `cmd:"" help:"Make a group and print its id."`
	Add     groupAdd     `cmd:"" help:"Add members; they see what is sent from then on."`
	Remove  groupRemove  `cmd:"" help:"Remove members."`
	Members groupMembers `cmd:"" help:"List members, one a line."`
}

type groupCreate struct {
	Group   string   `arg:"" help:"Its id, g: and characters of A-Z a-z 0-9 _ . @ -; \"-\" = made by the server."`
	Members []string `arg:"" optional:"" help:"First members."`
}

type groupAdd struct {
	Group   string   `arg:"" help:"Id of the group."`
	Members []string `arg:"" help:"User ids."`
}

type groupRemove groupAdd

type groupMembers struct {
	Group string `arg:"" help:"Id of the group."`
}

// Run makes the group.
func (c *groupCreate) Run(ctx context.Context, g *groupCmd) error {
	return g.with(func(api statev1.MessagingClient) error { return c.run(ctx, g, api, os.Stdout) })
}

func (c *groupCreate) run(ctx context.Context, g *groupCmd, api statev1.MessagingClient, out io.Writer) error {
	id := c.Group
	if id == "-" {
		id = ""
	}
	first := c.Members[:min(len(c.Members), groupChunk)]
	made, err := one(ctx, g, &statev1.CreateGroupRequest{GroupId: id, Members: first}, api.CreateGroup)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, made.GroupId); err != nil {
		return err
	}
	for some := range slices.Chunk(c.Members[len(first):], groupChunk) {
		if _, err := one(ctx, g, &statev1.AddMembersRequest{GroupId: made.GroupId, Members: some}, api.AddMembers); err != nil {
			return err
		}
	}
	return nil
}

// Run adds the members.
func (c *groupAdd) Run(ctx context.Context, g *groupCmd) error {
	return g.inChunks(c.Members, "added", func(api statev1.MessagingClient, some []string) (uint32, error) {
		r, err := one(ctx, g, &statev1.AddMembersRequest{GroupId: c.Group, Members: some}, api.AddMembers)
		return r.GetAdded(), err
	})
}

// Run removes the members.
func (c *groupRemove) Run(ctx context.Context, g *groupCmd) error {
	return g.inChunks(c.Members, "removed", func(api statev1.MessagingClient, some []string) (uint32, error) {
		r, err := one(ctx, g, &statev1.RemoveMembersRequest{GroupId: c.Group, Members: some}, api.RemoveMembers)
		return r.GetRemoved(), err
	})
}

// inChunks makes as many calls as the members need, and prints how many it did something to.
func (g *groupCmd) inChunks(members []string, did string, call func(statev1.MessagingClient, []string) (uint32, error)) error {
	return g.with(func(api statev1.MessagingClient) error {
		total := uint32(0)
		for some := range slices.Chunk(members, groupChunk) {
			n, err := call(api, some)
			if err != nil {
				return err
			}
			total += n
		}
		_, err := fmt.Fprintf(os.Stdout, "%s %d\n", did, total)
		return err
	})
}

// Run lists the members.
func (c *groupMembers) Run(ctx context.Context, g *groupCmd) error {
	return g.with(func(api statev1.MessagingClient) error { return c.run(ctx, g, api, os.Stdout) })
}

func (c *groupMembers) run(ctx context.Context, g *groupCmd, api statev1.MessagingClient, out io.Writer) error {
	for cursor := ""; ; {
		r, err := one(ctx, g, &statev1.ListMembersRequest{GroupId: c.Group, Cursor: cursor, Limit: groupChunk}, api.ListMembers)
		if err != nil {
			return err
		}
		for _, uid := range r.Members {
			if _, err := fmt.Fprintln(out, uid); err != nil {
				return err
			}
		}
		if cursor = r.Cursor; cursor == "" {
			return nil
		}
	}
}

// trusting is TLS towards a server whose certificate an authority in file (PEM) has signed.
func trusting(file string) (*tls.Config, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--ca %s holds no certificate", file)
	}
	return c, nil
}

// with connects for as long as do runs.
func (g *groupCmd) with(do func(statev1.MessagingClient) error) error {
	creds := insecure.NewCredentials()
	if g.CA != "" {
		trusted, err := trusting(g.CA)
		if err != nil {
			return fmt.Errorf("%w: %w", program.ErrUsage, err)
		}
		creds = credentials.NewTLS(trusted)
	}
	conn, err := grpc.NewClient(g.Addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		return fmt.Errorf("%w: --addr: %w", program.ErrUsage, err)
	}
	defer func() { _ = conn.Close() }()
	return do(statev1.NewMessagingClient(conn))
}

// one makes one call. What the server finds wrong with the arguments is an error of usage.
func one[Q, R any](ctx context.Context, g *groupCmd, q Q, call func(context.Context, Q, ...grpc.CallOption) (R, error)) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, g.Timeout)
	defer cancel()
	if g.Token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+g.Token)
	}
	r, err := call(ctx, q)
	switch s := status.Convert(err); s.Code() {
	case codes.OK:
		return r, nil
	case codes.InvalidArgument:
		return r, fmt.Errorf("%w: %s", program.ErrUsage, s.Message())
	case codes.AlreadyExists:
		return r, fmt.Errorf("%s is there already", s.Message())
	case codes.NotFound:
		return r, fmt.Errorf("%s does not exist", s.Message())
	default:
		return r, fmt.Errorf("%s answered %s: %s", g.Addr, s.Code(), s.Message())
	}
}
