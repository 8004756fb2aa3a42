package testenv

import (
	"net"
	"testing"
)

func TestRedisKeepsItsAddressOverAKill(t *testing.T) {
	s := Redis(t)
	s.Kill()
	if err := pingRedis(s.Addr); err == nil {
		t.Fatal("a killed server answers")
	}
	s.Start()
	if err := pingRedis(s.Addr); err != nil {
		t.Fatal(err)
	}
}

func TestMariaDB(t *testing.T) {
	s := MariaDB(t)
	if err := dialOnce(s.Addr); err != nil {
		t.Fatal(err)
	}
}

// TestFreeAddrIsClaimed: two servers that start late must not find themselves on one port.
func TestFreeAddrIsClaimed(t *testing.T) {
	var claimed string
	t.Run("claims", func(t *testing.T) {
		claimed = FreeAddr(t)
		if c, err := net.ListenPacket("udp", claimed); err == nil {
			_ = c.Close()
			t.Error("nothing keeps another call from returning the same port")
		}
		l, err := net.Listen("tcp", claimed)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	})
	c, err := net.ListenPacket("udp", claimed)
	if err != nil {
		t.Fatalf("the claim outlives its test: %v", err)
	}
	_ = c.Close()
}
