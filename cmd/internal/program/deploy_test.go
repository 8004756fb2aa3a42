package program_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"

	"github.com/sluice-im/sluice/cmd/internal/conf"
	"github.com/sluice-im/sluice/cmd/internal/program"
	"github.com/sluice-im/sluice/gateway"
	"github.com/sluice-im/sluice/stateserver"
)

// deploy is where the files are that operators start from.
const deploy = "../../../deploy"

// secret is what the sample leaves to the environment.
const secret = "SLUICE_AUTH_JWT_SECRET=a secret of at least thirty-two bytes"

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(deploy, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func parsed(t *testing.T, name string) map[string]any {
	t.Helper()
	tree, err := yaml.Parser().Unmarshal([]byte(read(t, name)))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return tree
}

// TestSamplesHoldEveryKeyWithItsDefault: a sample that says something else than the program does is worse than none.
func TestSamplesHoldEveryKeyWithItsDefault(t *testing.T) {
	wantGateway, gatewayConfig := gateway.Default(), gateway.Default()
	wantGateway.Auth.JWT.Secret = strings.TrimPrefix(secret, "SLUICE_AUTH_JWT_SECRET=")
	wantServer, serverConfig := stateserver.Default(), stateserver.Default()
	for _, c := range []struct {
		file       string
		into, want program.Validator
		environ    []string
	}{
		{"gateway.yaml", &gatewayConfig, &wantGateway, []string{secret}},
		{"stateserver.yaml", &serverConfig, &wantServer, nil},
	} {
		if err := program.Load(c.into, conf.Sources{File: filepath.Join(deploy, c.file), Environ: c.environ}); err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		if got, want := fmt.Sprintf("%+v", c.into), fmt.Sprintf("%+v", c.want); got != want {
			t.Errorf("%s differs from the defaults:\n%s\n%s", c.file, got, want)
		}
		for _, key := range missing(reflect.TypeOf(c.into).Elem(), parsed(t, c.file), "") {
			t.Errorf("%s has no %s", c.file, key)
		}
	}
}

// missing are the keys of a configuration that a file does not name.
func missing(of reflect.Type, in any, path string) (keys []string) {
	if of.Kind() == reflect.Slice && of.Elem().Kind() == reflect.Struct {
		list, _ := in.([]any)
		for i, element := range list {
			keys = append(keys, missing(of.Elem(), element, fmt.Sprintf("%s[%d]", path, i))...)
		}
		return keys
	}
	if of.Kind() != reflect.Struct {
		return nil
	}
	tree, _ := in.(map[string]any)
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("koanf"), ",")
		if name == "-" || name == "" {
			continue
		}
		if value, ok := tree[name]; ok {
			keys = append(keys, missing(of.Field(i).Type, value, path+"."+name)...)
		} else {
			keys = append(keys, path+"."+name)
		}
	}
	return keys
}

// TestUnitsStartWithFlagsThatExist reads the command lines of the systemd units and the Dockerfile.
func TestUnitsStartWithFlagsThatExist(t *testing.T) {
	commands := 0
	for _, file := range []string{"systemd/sluice-gateway.service", "systemd/sluice-stateserver.service"} {
		for line := range strings.Lines(read(t, file)) {
			key, command, _ := strings.Cut(strings.TrimSpace(line), "=")
			if key == "ExecStart" || key == "ExecStartPre" {
				commands++
				parses(t, file, strings.Fields(command))
			}
		}
	}
	entry := regexp.MustCompile(`ENTRYPOINT \[(.*)\]`)
	for _, m := range entry.FindAllStringSubmatch(read(t, "Dockerfile"), -1) {
		commands++
		parses(t, "Dockerfile", strings.Fields(strings.NewReplacer(`"`, "", ",", " ").Replace(m[1])))
	}
	if commands != 6 {
		t.Errorf("%d command lines found, want 6", commands)
	}
	for _, m := range regexp.MustCompile(`(?m)^COPY (deploy/\S+|go\.mod go\.sum) `).FindAllStringSubmatch(read(t, "Dockerfile"), -1) {
		for _, name := range strings.Fields(m[1]) {
			if _, err := os.Stat(filepath.Join(deploy, "..", name)); err != nil {
				t.Errorf("Dockerfile: %v", err)
			}
		}
	}
}

func parses(t *testing.T, where string, command []string) {
	t.Helper()
	var f program.Flags
	parser, err := kong.New(&f, kong.Vars{"version": ""})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(command[1:]); err != nil {
		t.Errorf("%s: %v: %v", where, command, err)
	}
	if name := filepath.Base(command[0]); filepath.Base(f.Config) != name+".yaml" {
		t.Errorf("%s: %s is started with %s", where, name, f.Config)
	}
}

// TestComposeSetsKeysThatExist: an environment variable that names no key ends the start of a container.
func TestComposeSetsKeysThatExist(t *testing.T) {
	var file struct {
		Services map[string]struct {
			Environment map[string]string
			Build       struct{ Dockerfile, Target string }
			Healthcheck struct{ Test []string }
		}
	}
	if err := mapstructure.Decode(parsed(t, "compose.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	gatewayConfig, serverConfig := gateway.Default(), stateserver.Default()
	for name, c := range map[string]struct {
		into  program.Validator
		admin string
	}{
		"gateway":     {&gatewayConfig, gatewayConfig.Admin.Addr},
		"stateserver": {&serverConfig, serverConfig.Admin.Addr},
	} {
		s := file.Services[name]
		environ := []string{}
		for key, value := range s.Environment {
			if strings.HasPrefix(value, "${") {
				value = strings.TrimPrefix(secret, key+"=")
			}
			environ = append(environ, key+"="+value)
		}
		if err := program.Load(c.into, conf.Sources{File: filepath.Join(deploy, name+".yaml"), Environ: environ}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if s.Build.Dockerfile != "deploy/Dockerfile" || !strings.Contains(read(t, "Dockerfile"), " AS "+s.Build.Target+"\n") {
			t.Errorf("%s is built from %+v", name, s.Build)
		}
		if !slices.ContainsFunc(s.Healthcheck.Test, func(arg string) bool { return strings.HasPrefix(arg, "http://"+c.admin+"/") }) {
			t.Errorf("%s: the health check %v does not ask %s", name, s.Healthcheck.Test, c.admin)
		}
	}
}
