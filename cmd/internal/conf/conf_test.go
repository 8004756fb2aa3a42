package conf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

type listener struct {
	Name string `koanf:"name"`
	Path string `koanf:"path"`
}

type config struct {
	Limits struct {
		Connections int           `koanf:"connections"`
		Timeout     time.Duration `koanf:"timeout"`
		Uplink      struct {
			PerSecond int `koanf:"messages_per_second"`
		} `koanf:"uplink"`
	} `koanf:"limits"`
	Listeners []listener `koanf:"listeners"`
	Log       struct {
		Level string `koanf:"level"`
	} `koanf:"log"`
}

func defaults() config {
	var c config
	c.Limits.Connections = 10
	c.Limits.Timeout = time.Second
	c.Limits.Uplink.PerSecond = 50
	c.Listeners = []listener{{"ws", "/ws"}, {"tcp", ""}}
	c.Log.Level = "info"
	return c
}

func TestLaterSourcesWin(t *testing.T) {
	f := filepath.Join(t.TempDir(), "c.yaml")
	text := "limits: {connections: 20, uplink: {messages_per_second: 1}}\nlisteners: [{name: only}]\nlog: {level: warn}\n"
	if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := defaults()
	err := Load(&c, Sources{
		File:    f,
		Environ: []string{"SLUICE_LIMITS_UPLINK_MESSAGES_PER_SECOND=2", "SLUICE_LIMITS_TIMEOUT=3s", "SLUICE_UNRELATED=x", "HOME=/"},
		Sets:    []string{"limits.timeout=4s", "log.level=debug"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Limits.Connections != 20 || c.Limits.Uplink.PerSecond != 2 || c.Limits.Timeout != 4*time.Second || c.Log.Level != "debug" {
		t.Errorf("got %+v", c)
	}
	if len(c.Listeners) != 1 || c.Listeners[0] != (listener{Name: "only"}) {
		t.Errorf("a list in the file must replace the default list: %+v", c.Listeners)
	}
}

func TestListBySet(t *testing.T) {
	c := defaults()
	if err := Load(&c, Sources{Sets: []string{"listeners=[{name: a, path: /a}, {name: b}]"}}); err != nil {
		t.Fatal(err)
	}
	if len(c.Listeners) != 2 || c.Listeners[0].Path != "/a" || c.Listeners[1].Name != "b" {
		t.Errorf("got %+v", c.Listeners)
	}
}

func TestTextIsTakenAsItIs(t *testing.T) {
	for raw, want := range map[string]string{
		"01234567890123456789012345678901": "01234567890123456789012345678901",
		"true":                             "true", "pass #word": "pass #word", "a: b": "a: b", "@[x": "@[x", "": "",
		`"quoted"`: "quoted", `'quoted'`: "quoted",
	} {
		c := defaults()
		if err := Load(&c, Sources{Environ: []string{"SLUICE_LOG_LEVEL=" + raw}}); err != nil || c.Log.Level != want {
			t.Errorf("environment, %s: %q, %v", raw, c.Log.Level, err)
		}
		c = defaults()
		if err := Load(&c, Sources{Sets: []string{"log.level=" + raw}}); err != nil || c.Log.Level != want {
			t.Errorf("--set, %s: %q, %v", raw, c.Log.Level, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	dotted := filepath.Join(t.TempDir(), "dotted.yaml")
	if err := os.WriteFile(dotted, []byte("limits.connections: 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		src   Sources
		wants []string
	}{
		{"unknown key", Sources{Sets: []string{"limits.conections=5"}}, []string{"limits.conections", "5", "limits.connections"}},
		{"unknown section", Sources{Sets: []string{"limit.connections=5"}}, []string{"limit.connections", "limits", "log"}},
		{"unknown key in a list", Sources{Sets: []string{"listeners=[{nam: a}]"}}, []string{"listeners", "nam"}},
		{"wrong type", Sources{Sets: []string{"limits.connections=many"}}, []string{"limits.connections", "many", "int"}},
		{"bare number as duration", Sources{Sets: []string{"limits.timeout=5"}}, []string{"limits.timeout", "5", "unit"}},
		{"bad duration", Sources{Sets: []string{"limits.timeout=5 parsecs"}}, []string{"limits.timeout", "5 parsecs"}},
		{"a fraction for a whole number", Sources{Sets: []string{"limits.connections=65536.5"}}, []string{"limits.connections", "65536.5", "int"}},
		{"a number beyond 64 bits", Sources{Sets: []string{"limits.connections=99999999999999999999999"}}, []string{"limits.connections", "int"}},
		{"value of an unknown key in a list", Sources{Sets: []string{"listeners=[{name: a}, {name: b, pth: /c}]"}}, []string{"listeners[1].pth", "/c", "name, path"}},
		{"no map in a list", Sources{Sets: []string{"listeners=[7]"}}, []string{"listeners[0]", "7", "name, path"}},
		{"no list", Sources{Sets: []string{"listeners=7"}}, []string{"listeners", "7", "a list"}},
		{"wrong type in a list", Sources{Sets: []string{"listeners=[{name: [a]}]"}}, []string{"listeners[0].name", "[a]", "string"}},
		{"dots in a key of the file", Sources{File: dotted}, []string{"limits.connections", "5", "limits"}},
		{"no equals sign", Sources{Sets: []string{"limits"}}, []string{"--set", "key=value"}},
		{"variable below a section", Sources{Environ: []string{"SLUICE_LIMITS_NONE=5"}}, []string{"SLUICE_LIMITS_NONE", "5"}},
		{"no file", Sources{File: "/nonexistent.yaml"}, []string{"/nonexistent.yaml"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			into := defaults()
			err := Load(&into, c.src)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, w := range c.wants {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not name %q", err, w)
				}
			}
		})
	}
}
