package testenv

import "testing"

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
